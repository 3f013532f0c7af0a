"""Options that several commands share, so that each is spelled one way everywhere.

Imports nothing but the standard library: a command parses its arguments first and imports torch
and mmengine afterwards, so that ``--help`` and typing errors answer at once.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

SHAPES = ('linear', 'cosine', 'smoothstep', 'sigmoid')  # of ops.column_selection, without torch
RATIO_HELP = ('none (all columns), one ratio in (0, 1], first,last for a linear schedule over '
              'depth, SHAPE:first,last for another one (cosine:0.9,0.1; smoothstep, sigmoid), or '
              'one number for each layer, separated by commas')


def command_line(doc: str) -> argparse.ArgumentParser:
    """A parser whose help is the text of a tool, and which takes no option by its beginning."""
    return argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)


def keep_ratio(text: str) -> float | tuple[float, ...] | dict | None:
    """One keep ratio as a word, an argparse type.

    ``none`` keeps all columns; ``0.5`` holds for every layer; ``0.9,0.1`` is the linear schedule
    over depth, both ends included; ``cosine:0.9,0.1`` one of another shape; more numbers give one
    for each layer.
    """
    if text == 'none':
        return None
    shape, colon, numbers = text.rpartition(':')
    try:
        ratios = tuple(float(word) for word in numbers.split(','))
    except ValueError:
        ratios = ()
    if (not ratios or not all(0 < ratio <= 1 for ratio in ratios)
            or (colon and (shape not in SHAPES or len(ratios) != 2))):
        raise argparse.ArgumentTypeError(
            f'{text!r} is no keep ratio: give none, a number in (0, 1], first,last for a linear '
            f'schedule, SHAPE:first,last (SHAPE: {", ".join(SHAPES)}), or one number for each '
            'layer, separated by commas')
    if colon:
        return dict(start=ratios[0], end=ratios[1], shape=shape)
    return ratios[0] if len(ratios) == 1 else ratios


def one_ratio(text: str) -> float:
    """A keep ratio that is one number, an argparse type for what knows no layers."""
    value = keep_ratio(text)
    if not isinstance(value, float):
        raise argparse.ArgumentTypeError(f'{text!r}: here a keep ratio is one number in (0, 1]')
    return value


def ratio_word(value: float | Sequence[float] | Mapping | None) -> str:
    """The word that :func:`keep_ratio` reads as ``value``."""
    if value is None:
        return 'none'
    if isinstance(value, Mapping):
        return f"{value.get('shape', 'linear')}:{value['start']:g},{value['end']:g}"
    return f'{value:g}' if isinstance(value, float) else ','.join(f'{ratio:g}' for ratio in value)


def add_keep_ratio(parser: argparse.ArgumentParser, several: bool = False, **options) -> None:
    """``--keep-ratio R``, or with ``several`` ``--keep-ratio R [R ...]`` for settings to compare.

    A single one is absent from the namespace where it is not given (``'keep_ratio' in args``),
    since None is the value of ``none``.
    """
    options = {'type': keep_ratio, 'default': argparse.SUPPRESS,
               'help': RATIO_HELP + ' (default: what the config says)', **options}
    parser.add_argument('--keep-ratio', metavar='R', nargs='+' if several else None, **options)


class Shape(argparse.Action):
    """One or two positive numbers as (H, W)."""

    def __call__(self, parser, namespace, values, option_string=None):
        if len(values) > 2 or min(values) < 1:
            parser.error(f'{option_string} takes one or two positive numbers, got '
                         f'{" ".join(map(str, values))}')
        setattr(namespace, self.dest, tuple(values * 2)[:2])


def add_shape(parser: argparse.ArgumentParser, default: tuple[int, int] | None = None,
              help: str = 'input height and width, or one number for both') -> None:
    """``--shape H [W]``, a tuple (H, W)."""
    said = 'what the config says' if default is None else ' '.join(map(str, default))
    parser.add_argument('--shape', type=int, nargs='+', action=Shape, default=default,
                        metavar=('H', 'W'), help=f'{help} (default: {said})')


class DictAction(argparse.Action):
    """mmengine's action of this name, imported when the option is given."""

    def __call__(self, parser, namespace, values, option_string=None):
        for word in values:
            if '=' not in word:
                parser.error(f'{option_string}: {word!r} is not of the form KEY=VALUE')
        from mmengine.config import DictAction as OfMMEngine
        try:
            OfMMEngine(self.option_strings, self.dest, nargs=self.nargs)(
                parser, namespace, values, option_string)
        except (AssertionError, RecursionError):  # how mmengine fails on brackets, on a dict
            parser.error(f'{option_string}: values are numbers, words, lists and tuples with '
                         'matching brackets; set the entries of a dict one by one, KEY.ENTRY=VALUE')


def add_cfg_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--cfg-options', nargs='+', action=DictAction, metavar='KEY=VALUE',
                        help='override values of the config, e.g. '
                        'model.backbone.keep_ratio="(0.9,0.1)"')


def add_overwrite(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--overwrite', action='store_true', help='replace existing outputs')


def add_amp(parser) -> None:
    parser.add_argument(
        '--amp', nargs='?', const='bf16', choices=['bf16', 'fp16'],
        help='matrix products and convolutions in this precision (default of --amp: bf16)')


def add_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--device', help='e.g. cpu or cuda:1 (default: a GPU where there is one)')


def use_device(args: argparse.Namespace) -> None:
    """Fill in ``args.device`` where none was given, and check it.

    Raises:
        ValueError: torch knows no such device, or this machine has none.
    """
    import torch

    from mmext.analysis.timing import check_device
    if args.device is None:
        args.device = 'cuda' if torch.cuda.is_available() else 'cpu'
    check_device(args.device)


def positive(text: str) -> int:
    """A number of at least 1, an argparse type."""
    if not text.lstrip('+').isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f'{text} is no number of at least 1')
    return int(text)


def analysis_parser(doc: str, num_images: int, compare: bool = False, heads: bool = True
                    ) -> argparse.ArgumentParser:
    """The options of every tool that draws figures; ``num_images`` is the default of that option.
    """
    out = command_line(doc)
    out.add_argument('config', help='config of a classifier or detector')
    out.add_argument(
        'checkpoint', nargs='?',
        help="of the whole model, or of the backbone alone in any layout it knows (default: "
        "what the config's init_cfg names, where that file is here; else random weights)")
    if compare:
        out.add_argument('--compare', nargs='+', default=[], metavar='CONFIG[=CKPT]',
                         help='further models for the same figure')
    out.add_argument('--images', nargs='+', default=['dataset'], metavar='PATH',
                     help="folders or files, or the word 'dataset' for the config's own test "
                     'data (default)')
    out.add_argument('--num-images', type=positive, default=num_images,
                     help=f'taken evenly from all that are given (default: {num_images})')
    add_shape(out, help='resize and crop to this size instead of what the test pipeline does')
    out.add_argument('--layers', type=int, nargs='+', help='block indices, -1 is the last')
    if heads:
        out.add_argument('--heads', type=int, nargs='+', help='head indices')
    out.add_argument('--batch-size', type=positive, default=1)
    add_device(out)
    out.add_argument('--out', type=Path, default=Path('analysis'), metavar='DIR',
                     help='where figures go (default: analysis)')
    out.add_argument('--json', nargs='?', const='', metavar='FILE',
                     help='write the numbers to this file, without FILE beside the figures')
    out.add_argument('--dpi', type=positive, default=110, help='of the figures (default: 110)')
    add_overwrite(out)
    add_cfg_options(out)
    return out
