"""The command line: verbs only, each in its own module, imported when it is called."""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from types import FrameType
from typing import TextIO

from ncollapse.console import prepare_streams
from ncollapse.early_gpu import choose_gpu, load_libraries, open_gpu
from ncollapse.grammar import describe_error
from ncollapse.processes import SAFE_PATH, claim_process, end_with, importing

VERBS = {
    "measure": "every number of the papers from features, labels and a classifier, or from a checkpoint",
    "predict": "what the last layer converges to, before any training",
    "certify": "how far a trained last layer is from the global optimum",
    "train": "one network by a recipe, measured every epoch, resumable",
    "compare": "the same network under several losses and seeds, with statistics and a page",
    "reproduce": "the tables and figures of the papers as named experiments",
    "report": "the page for any folder of runs",
    "env": "versions, GPUs and data sets found, for a bug report",
    "data": "which data sets are there, which are missing and where to put them",
}
CONTINUED = ("compare", "reproduce")
"""What the same command takes up where it was stopped; `train` says of itself how."""
BAD_INPUT = (
    ValueError,
    TypeError,
    FileNotFoundError,
    NotADirectoryError,
    IsADirectoryError,
    PermissionError,
    ImportError,
)


COMMAND_PACKAGES = ("tyro", "rich", "cattrs", "jinja2", "plotly", "sklearn")
"""Packages that the library itself does without (docs/architecture.md)."""


def main(argv: list[str] | None = None) -> int:
    """Run one verb; return 0, 1 (the job failed), 2 (bad input) or 130 (interrupted)."""
    if argv is None:
        claim_process()
    prepare_streams()
    os.environ.setdefault(SAFE_PATH, "1")  # for every process that this one starts
    if os.environ.get("NO_COLOR"):
        os.environ.setdefault("PYTHON_TYRO_ANSI_CODES", "False")  # the parser does not know NO_COLOR
    args = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in args
    args = [arg for arg in args if arg != "--debug"]
    if not args or args[0] in ("-h", "--help"):
        print_to(sys.stdout if args else sys.stderr, usage())
        return 0 if args else 2
    if args[0] == "--version":
        from ncollapse import __version__

        print_to(sys.stdout, f"ncollapse {__version__}")
        return 0
    verb, *rest = args
    if verb not in VERBS:
        print(f"ncollapse: no verb {verb!r}; there are {', '.join(VERBS)}", file=sys.stderr)
        return 2
    return end_with(run_verb(verb, rest, debug))


def run_verb(verb: str, args: list[str], debug: bool) -> int:
    """Import and run a verb; what goes wrong becomes a message and an exit code."""
    with note_interrupts() as noted:
        try:
            with plain_warnings(verb):
                check_working_folder()
                with importing():
                    start_gpu(args if verb == "train" else [])
                    command = import_module(f"ncollapse.commands.{verb}")
                if noted:
                    raise KeyboardInterrupt
                code = int(command.main(args))
                flush_output()
                return code
        except KeyboardInterrupt:
            return report_interrupt(verb)
        except BrokenPipeError:
            drop_output()
            return 1
        except Exception as error:
            if debug:
                import traceback

                traceback.print_exc()
            elif noted:
                return report_interrupt(verb)
            else:
                print(f"ncollapse {verb}: {describe(error)}", file=sys.stderr)
            return 2 if isinstance(error, BAD_INPUT) else 1


def check_working_folder() -> None:
    """Raise if the folder that this process was started in is gone: torch's libraries end the process then."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise FileNotFoundError("the current folder was deleted; change to another one") from None


def start_gpu(args: list[str]) -> None:
    """Start the GPU that `train` will use while its modules are imported."""
    number = choose_gpu(args)
    if number is None:
        return
    open_gpu(number)
    import_module("torch")
    if "--deterministic" not in args:  # which changes how the libraries must be loaded
        load_libraries(number)


def describe(error: Exception) -> str:
    """Return the message of an error; where it has none, what kind of error it is."""
    if isinstance(error, MemoryError):
        return f"out of memory{f' ({error})' if str(error) else ''}"
    if isinstance(error, ModuleNotFoundError) and error.name in COMMAND_PACKAGES:
        return f"the commands need {error.name}: pip install ncollapse, without --no-deps"
    return describe_error(error)


def print_to(stream: TextIO, text: str) -> None:
    """Print where nobody may read to the end, as in `ncollapse --help | head -1`."""
    try:
        print(text, file=stream, flush=True)
    except BrokenPipeError:
        drop_output()


def flush_output() -> None:
    """Write out what was printed; a full disk behind standard output is an error like any other."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        drop_output()
        raise OSError(f"standard output: cannot be written: {error.strerror}") from error


def drop_output() -> None:
    """Send what is still to be printed nowhere, so that the interpreter does not complain about it at its end."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def note_interrupts() -> Iterator[list[int]]:
    """Note every Ctrl-C: one that comes while libraries are imported may end as another error, or as none."""
    noted: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        noted.append(number)
        signal.default_int_handler(number, frame)

    main_thread = threading.current_thread() is threading.main_thread()
    if not main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield noted
        return
    signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def report_interrupt(verb: str) -> int:
    """Say that it was interrupted, and where the same command goes on."""
    hint = "; the same command continues where it stopped" if verb in CONTINUED else ""
    print(f"ncollapse {verb}: interrupted{hint}", file=sys.stderr)
    return 130


@contextmanager
def plain_warnings(verb: str) -> Iterator[None]:
    """Print warnings as one plain line, as errors are."""
    kept = warnings.formatwarning
    warnings.formatwarning = lambda message, *_, **__: (
        f"ncollapse {verb}: warning: {str(message).removeprefix(f'{verb}: ')}\n"
    )
    try:
        yield
    finally:
        warnings.formatwarning = kept


def usage() -> str:
    """The list of verbs."""
    lines = [
        "usage: ncollapse VERB [options]",
        "",
        "Measure, predict and steer neural collapse in classifiers.",
        "",
        "verbs:",
    ]
    lines += [f"  {verb:<10} {meaning}" for verb, meaning in VERBS.items()]
    lines += ["", "ncollapse VERB --help says more; --debug shows tracebacks."]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
