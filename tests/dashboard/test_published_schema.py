"""What the published schema promises holds for any question that fits it, and for many that do not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from dashboard.serving import Served, serve
from dashboard.synthetic import Shape, make
from ftis_node.dashboard.app import ENDPOINTS
from ftis_node.dashboard.openapi import describe

#: for each address; what is drawn is the same in every run
EXAMPLES = 20
#: an endless answer is no answer to a question
ENDLESS = "/api/v1/stream"

KEPT = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]

document = describe(tuple(endpoint for endpoint in ENDPOINTS if endpoint.path != ENDLESS))
schema = schemathesis.openapi.from_dict(document)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    store = make(tmp_path_factory.mktemp("schema") / "node.db", Shape(steps=12, nodes=2, rollouts=3), hostile=True)
    page = serve(store, token="the-secret", ask=lambda kind, node: 1)
    yield page
    page.close()


@schema.parametrize()
@settings(
    max_examples=EXAMPLES,
    derandomize=True,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_no_question_breaks_it(case: schemathesis.Case, page: Served) -> None:
    answer = case.call(base_url=page.url.rstrip("/"))
    assert answer.status_code < 500, case.as_curl_command()
    assert b"Traceback" not in answer.content
    assert b"the-secret" not in answer.content
    case.validate_response(answer, checks=KEPT)
