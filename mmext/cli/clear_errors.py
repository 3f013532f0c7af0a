"""How a command ends when something is wrong: one line about it, status 1. Imports no torch."""

import contextlib
import os.path as osp
import sys
import traceback

import mmext


class ConfigError(ValueError):
    """What was asked for does not exist or cannot be; the message names it and the cure."""


def root_cause(error: BaseException) -> BaseException:
    """The error that the user can act on: one of mmext's own, else the first of the chain."""
    while not type(error).__module__.startswith('mmext.') and error.__cause__ is not None:
        error = error.__cause__
    return error


def written_for_the_user(error: BaseException) -> bool:
    """Whether the message is enough by itself: mmext's own errors, bad values it refused, files."""
    if type(error).__module__.startswith('mmext.'):
        return True
    if isinstance(error, OSError) and error.filename:  # the system names the file and the reason
        return True
    where = traceback.extract_tb(error.__traceback__)
    # the tool's file; sys.argv[0] is `mmext train` where the console command runs it
    tool = getattr(sys.modules['__main__'], '__file__', None) or sys.argv[0]
    ours = (osp.dirname(mmext.__file__), osp.dirname(osp.abspath(tool)))
    return isinstance(error, (ValueError, OSError)) and bool(where) and osp.abspath(
        where[-1].filename).startswith(ours)


def is_first_process() -> bool:
    """Whether this process is to speak: the only one, or the first of a distributed run."""
    dist = sys.modules.get('torch.distributed')  # not imported: nothing is distributed
    return dist is None or not (dist.is_available() and dist.is_initialized()) \
        or dist.get_rank() == 0


def interrupt_behind(error: BaseException) -> KeyboardInterrupt | None:
    """The Ctrl-C that an error came of, or is.

    What is interrupted often ends with an error of its own: torch's writer of files, mmengine
    while it formats the config for a checkpoint.
    """
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error


@contextlib.contextmanager
def one_clear_error():
    """End the process with status 1 and the cause as last line; details stay above it.

    After Ctrl-C the status is 130, and the line says what the KeyboardInterrupt was given, such
    as how to go on.
    """
    try:
        yield
    except SystemExit as end:
        if not isinstance(end.code, str):
            raise
        print(f'error: {end.code.removeprefix("error: ")}', file=sys.stderr)
        raise SystemExit(1) from None
    except (KeyboardInterrupt, Exception) as error:
        interrupt = interrupt_behind(error)
        if interrupt is not None:
            print('; '.join(['\ninterrupted', *map(str, interrupt.args)]), file=sys.stderr)
            raise SystemExit(130) from None
        cause = root_cause(error)
        if sys.stderr.isatty():
            print(file=sys.stderr)  # a progress bar may stand on this line
        if written_for_the_user(cause):
            if is_first_process():
                print(f'error: {cause}', file=sys.stderr)
            raise SystemExit(1) from None
        traceback.print_exc()
        message = str(cause).strip()
        if isinstance(cause, KeyError):
            message = str(cause.args[0]) if cause.args else message
        # A data worker hands its traceback on as text: its last line is the message.
        if 'Original Traceback' in message:
            message = message.splitlines()[-1]
        print(f'\nerror: {type(cause).__name__}: {message}', file=sys.stderr)
        raise SystemExit(1) from None
