"""A client for the device, whatever the tests of other folders did to theirs."""

from __future__ import annotations

import pytest

from tpu_compile.device import client, dispatch, trace


@pytest.fixture(autouse=True)
def open_client() -> None:
    """Let the device open a client anew where another test chose a platform since."""
    if client._client is not None and not client._client.is_open:
        client._client = None
        dispatch._steps.clear()
        trace._programs.clear()
