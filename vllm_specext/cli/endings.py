"""What a signal to a command does to the servers that the command has started."""

import signal
import sys


def end_servers_with_this() -> None:
    """Let SIGTERM and SIGHUP leave every ``with`` block. The servers are sessions of their own, which these signals do
    not reach when they are sent to a terminal's processes, and end where their block is left."""
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, lambda number, _: sys.exit(128 + number))
