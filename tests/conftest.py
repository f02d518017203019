"""What all tests start from, and what they say to people besides whether they pass."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterator

import pytest

_SAID = "said"


@pytest.fixture
def say(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Prints a text when the test has ended, also from a worker of pytest-xdist, whose output nobody sees."""
    return lambda text: record_property(_SAID, text)


@pytest.fixture
def logs_reach_pytest() -> Iterator[None]:
    """Lets ``caplog`` see the project's lines, which its logger keeps to itself."""
    logger = logging.getLogger("megatron")
    before, logger.propagate = logger.propagate, True
    yield
    logger.propagate = before


def pytest_configure(config: pytest.Config) -> None:
    # A shell starts what runs in its background deaf to interrupts, and so are all processes under it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Speaker(config))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files whose tests start processes come first: the last that workers share out are short ones."""
    long = {item.path for item in items if item.get_closest_marker("ranks")}
    items.sort(key=lambda item: item.path not in long)


class _Speaker:
    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        said = [text for name, text in report.user_properties if name == _SAID]
        if report.when == "call" and terminal is not None and said:
            terminal.ensure_newline()
            for text in said:
                terminal.write_line(str(text))
