"""Protects the polite stop."""

import os
import signal

import pytest

from megatron.runtime.signals import StopRequest, exit_status


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
