"""How a command ends when something is wrong: one line about it, status 1. Imports no torch."""

import contextlib
import os.path as osp
import sys
import traceback

import mmext


def root_cause(error: BaseException) -> BaseException:
    """The error that the user can act on: one of mmext's own, else the first of the chain."""
    while not type(error).__module__.startswith('mmext.') and error.__cause__ is not None:
        error = error.__cause__
    return error


def written_for_the_user(error: BaseException) -> bool:
    """Whether the message is enough by itself: mmext's own errors, and bad values it refused."""
    if type(error).__module__.startswith('mmext.'):
        return True
    where = traceback.extract_tb(error.__traceback__)
    # the tool's file; sys.argv[0] is `mmext train` where the console command runs it
    tool = getattr(sys.modules['__main__'], '__file__', None) or sys.argv[0]
    ours = (osp.dirname(mmext.__file__), osp.dirname(osp.abspath(tool)))
    return isinstance(error, ValueError) and bool(where) and osp.abspath(
        where[-1].filename).startswith(ours)


def is_first_process() -> bool:
    """Whether this process is to speak: the only one, or the first of a distributed run."""
    dist = sys.modules.get('torch.distributed')  # not imported: nothing is distributed
    return dist is None or not (dist.is_available() and dist.is_initialized()) \
        or dist.get_rank() == 0


@contextlib.contextmanager
def one_clear_error(after_interrupt: str = ''):
    """End the process with status 1 and the cause as last line; details stay above it.

    Args:
        after_interrupt: how to go on after Ctrl-C.
    """
    try:
        yield
    except KeyboardInterrupt:
        print('; '.join(filter(None, ('\ninterrupted', after_interrupt))), file=sys.stderr)
        raise SystemExit(130) from None
    except Exception as error:
        cause = root_cause(error)
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
