"""How a node shows itself: the page, and trackers beside it."""

from __future__ import annotations

import ipaddress
from typing import Literal

from pydantic import model_validator

from ftis_node.config_base import Section, setting


class PageSection(Section):
    """The page that shows what the node does; it can never hold up training."""

    enabled: bool = setting(True, "Serve the page.")
    host: str = setting("127.0.0.1", "IP address that the page listens on; only a loopback address keeps it private.")
    port: int = setting(
        8470, "TCP port of the page; a taken one is passed over for the next free one, 0 takes any.", unit="port",
        ge=0, le=65535,
    )  # fmt: skip
    hosts: tuple[str, ...] = setting(
        (), "Names, besides localhost and IP addresses, under which browsers may ask for the page."
    )
    public: bool = setting(
        False, "Show to anybody: no actions, no invite, and so many requests a second for each address."
    )

    @model_validator(mode="after")
    def _host_is_an_address(self) -> PageSection:
        try:
            ipaddress.ip_address(self.host)
        except ValueError:
            raise ValueError(f"host must be an IP address such as 127.0.0.1, not {self.host!r}") from None
        return self


class TrackSection(Section):
    """Curves for a tracker beside the page."""

    to: Literal["none", "tensorboard", "wandb", "trackio"] = setting(
        "none", "Tracker that gets every metric; its package has to be installed."
    )
    project: str = setting("ftis", "Project in the tracker; the run is called like the node.", max_length=100)
