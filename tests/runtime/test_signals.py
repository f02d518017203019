"""Protects the polite stop, and what a door does while it imports."""

import gc
import os
import signal
from collections.abc import Iterator

import pytest

from megatron.runtime.signals import StopRequest, exit_status, handled, loading


def test_the_first_signal_asks_and_handlers_come_back() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with StopRequest() as stop:
        assert not stop.asked
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.signal_name == "SIGTERM"
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_status_of_a_process_that_a_signal_ended_is_a_shells() -> None:
    assert [exit_status(code) for code in (0, 2, -9)] == [0, 2, 137]


def test_a_second_interrupt_ends_at_once() -> None:
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.signal_name == "SIGINT"
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.fixture
def heap() -> Iterator[None]:
    """What the rest of the tests has is looked through again."""
    yield
    gc.unfreeze()


def test_while_a_door_loads_an_interrupt_ends_it_and_nothing_is_garbage(heap: None) -> None:
    with loading():
        assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
        assert not gc.isenabled()
        kept: list[object] = []
        kept.append(kept)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert gc.isenabled()
    # Nothing of before is looked through any more, what comes later is.
    assert all(one is not kept for one in gc.get_objects())
    later: list[object] = []
    assert any(one is later for one in gc.get_objects())


def test_who_handles_interrupts_or_collects_no_garbage_keeps_it_so(heap: None) -> None:
    with handled([signal.SIGINT], lambda number, frame: None):
        before = signal.getsignal(signal.SIGINT)
        gc.disable()
        try:
            with loading():
                assert signal.getsignal(signal.SIGINT) is before
            assert not gc.isenabled()
        finally:
            gc.enable()
        assert signal.getsignal(signal.SIGINT) is before


def test_imports_that_fail_leave_everything_as_it_was(heap: None) -> None:
    with pytest.raises(ImportError), loading():
        raise ImportError
    assert gc.isenabled()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
