"""Entry points of the commands; Ctrl-C during their import ends them with 130 and without a traceback.

The handler ends the process instead of raising an exception, because imports can lose a KeyboardInterrupt.
`console.run` replaces it while the command runs.
"""

import os


def interrupted(_number: object = None, _frame: object = None) -> None:
    """End the process, which has nothing to clean up."""
    try:
        os.write(2, b"error: interrupted\n")
    finally:
        os._exit(130)


try:
    import signal
    from functools import partial
    from importlib import import_module
except KeyboardInterrupt:
    interrupted()


def end_when_interrupted() -> None:
    """Set a handler with which Ctrl-C ends the process; an ignored Ctrl-C stays ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupted)


def run(module: str) -> int:
    """Load a tool and run it; returns its exit code."""
    end_when_interrupted()
    code: int = import_module(module).main()
    return code


openqaic = partial(run, "qaic.cli.openqaic")
qaic_compile = partial(run, "qaic.cli.compile")
qaic_opstats = partial(run, "qaic.cli.opstats")
qaic_qpc = partial(run, "qaic.cli.qpc")
qaic_runner = partial(run, "qaic.cli.runner")
qaic_util = partial(run, "qaic.cli.util")
