"""Argument types that several commands share, so that one option is spelled one way everywhere."""

import argparse

from mmext.ops.column_selection import check_ratio


def keep_ratio(text: str) -> float | tuple[float, ...] | None:
    """One keep ratio as a word, an argparse type.

    ``none`` keeps all columns; ``0.5`` holds for every layer; ``0.9,0.1`` is the linear schedule
    over depth, both ends included; more numbers give one for each layer.
    """
    if text == 'none':
        return None
    try:
        ratios = tuple(check_ratio(float(word)) for word in text.split(','))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f'{text!r} is no keep ratio: give none, a number in (0, 1], first,last for a linear '
            'schedule, or one number for each layer, separated by commas') from None
    return ratios[0] if len(ratios) == 1 else ratios
