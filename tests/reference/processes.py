"""Child processes of the tests."""

import signal


def listen():
    """Python takes over a parent's deaf ear for Ctrl-C, and a test runner in the background has one: undo that."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
