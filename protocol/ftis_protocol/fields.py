"""The base of all messages and the kinds of field they are made of.

Every message is frozen, refuses unknown fields and converts nothing in silence: an int where a text belongs is an
error. Text is any Unicode without lone surrogates, because those have no UTF-8 form and could never be sent.
"""

from __future__ import annotations

import unicodedata
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from ftis_protocol import limits
from ftis_protocol.errors import Reason, WireError


def refusal(reason: Reason, message: str) -> PydanticCustomError:
    """A validation error that keeps its reason code on the way out of pydantic: the error's type is the code."""
    return PydanticCustomError(reason.value, "{detail}", {"detail": message})


_REASONS = frozenset(reason.value for reason in Reason)
_TOO_MUCH = frozenset({"too_long", "string_too_long", "bytes_too_long"})  # types of error of pydantic's
_SAY_LESS = "Nothing was sent. Put less into one message: fewer or shorter parts, or several messages."
_MEND = "Nothing was sent. Mend that field: every receiver would refuse the message."


def refused(error: ValidationError) -> WireError:
    """The first thing that is wrong with a message, as a refusal with its reason code."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    code = first["type"]
    place = ".".join(str(part) for part in first["loc"])
    reason = Reason.SIZE if code in _TOO_MUCH else Reason(code) if code in _REASONS else Reason.SCHEMA
    return WireError(reason, f"{place or 'message'}: {first['msg']}", _SAY_LESS if reason is Reason.SIZE else _MEND)


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError as error:
            place = f"U+{ord(value[error.start]):04X} at position {error.start}"
            raise refusal(Reason.SCHEMA, f"text holds a lone surrogate ({place}), which UTF-8 cannot carry") from None
    return value


def _printable(value: str) -> str:
    if any(unicodedata.category(char) in ("Cc", "Zl", "Zp") for char in value):
        raise refusal(Reason.SCHEMA, "a name may not hold control characters or line breaks")
    if value != value.strip():
        raise refusal(Reason.SCHEMA, "a name may not begin or end with a blank")
    return value


Text = Annotated[str, BeforeValidator(_encodable)]
Label = Annotated[Text, AfterValidator(_printable)]  # one line, may be empty
Count = Annotated[int, Field(ge=0, le=limits.MAX_COUNT)]
NodeId = Annotated[str, Field(pattern=r"^[a-z2-7]{26}$")]
Address = Annotated[Label, Field(min_length=1, max_length=limits.MAX_ADDRESS)]
TaskName = Annotated[Label, Field(min_length=1, max_length=limits.MAX_TASK_NAME)]
ModelName = Annotated[Label, Field(max_length=limits.MAX_MODEL_NAME)]
Revision = Annotated[Label, Field(max_length=limits.MAX_REVISION)]
Fingerprint = Annotated[Label, Field(max_length=limits.MAX_FINGERPRINT)]


class Record(BaseModel):
    """Base of every message and of every part of one."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, allow_inf_nan=False, hide_input_in_errors=True, validate_default=True
    )

    @classmethod
    def build(cls, **fields: Any) -> Self:
        """The message, for a sender: what is over a limit or malformed is a WireError with a hint, not pydantic's."""
        try:
            return cls(**fields)
        except ValidationError as error:
            raise refused(error) from error
