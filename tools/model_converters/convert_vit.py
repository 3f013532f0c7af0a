"""Turns a ViT checkpoint from one layout of names into another, by value.

Layouts, recognized by themselves on the way in:

    timm         bare tensors under timm's names (.safetensors or .pth)
    official     the same under 'model', as DeiT and MAE publish them
    mmpretrain   ImageClassifier of mmpretrain: backbone.layers.0.ln1..., head.layers.head....
    mmext        ImageClassifier of mmext: backbone.blocks.0.norm1..., head.fc....

Example::

    python tools/model_converters/convert_vit.py deit_small.pth deit_small_mmpretrain.pth \\
        --to mmpretrain
"""

import argparse
import sys
from pathlib import Path

from mmext.cli.clear_errors import one_clear_error

TARGETS = ('timm', 'mmpretrain', 'mmext', 'official')
HEADS = {'vit': 'head.layers.head.', 'linear': 'head.fc.'}


def parse_args(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('source', help='checkpoint file, or URL')
    parser.add_argument('target', help='file to write; .safetensors only with --to timm')
    parser.add_argument('--to', required=True, choices=TARGETS, help='layout to write')
    parser.add_argument('--prefix', default='', help='take only the names of SOURCE under it')
    parser.add_argument(
        '--head', choices=HEADS, default='vit',
        help="head of --to mmpretrain: its VisionTransformerClsHead or LinearClsHead (%(default)s)")
    parser.add_argument(
        '--backbone-only', action='store_true',
        help='leave out everything else: heads, necks, data preprocessors')
    parser.add_argument(
        '--drop-key-bias', action='store_true',
        help="leave out the key bias, which timm's and mmpretrain's bodies do not have")
    parser.add_argument('--overwrite', action='store_true', help='replace an existing TARGET')
    return parser.parse_args(argv)


def convert(state: dict, layout: str, head: str = 'vit', backbone_only: bool = False,
            drop_key_bias: bool = False) -> dict:
    """State dict of any layout to ``layout``; ValueError where a value would be lost unasked."""
    from mmext.checkpoints.vit import timm_to_mmext, timm_to_mmpretrain, to_timm
    out = to_timm(state)
    if backbone_only:
        out = {key: value for key, value in out.items() if key.split('.')[0] not in (
            'head', 'head_dist', 'neck', 'data_preprocessor')}
    lost = len(state) - len(out)
    if lost and not backbone_only:
        raise ValueError(f'{lost} entries are of neither body nor classification head; '
                         '--backbone-only leaves them out')
    key_bias = [key for key in out if '.key_bias.' in key]
    if key_bias and layout != 'mmext':
        if not drop_key_bias:
            raise ValueError(f'the checkpoint has a key bias in {len(key_bias)} blocks, which '
                             f'{layout} does not know; --drop-key-bias leaves it out, and changes '
                             'what the network computes')
        out = {key: value for key, value in out.items() if key not in key_bias}
    if layout == 'mmpretrain':
        return timm_to_mmpretrain(out, HEADS[head])
    return timm_to_mmext(out) if layout == 'mmext' else out


def save(state: dict, path: Path, layout: str) -> None:
    import torch
    if path.suffix == '.safetensors':
        from safetensors.torch import save_file
        save_file({key: value.contiguous() for key, value in state.items()}, str(path))
    elif layout == 'timm':
        torch.save(state, path)
    elif layout == 'official':
        torch.save({'model': state}, path)
    else:
        torch.save({'meta': {}, 'state_dict': state}, path)


def main(argv=None) -> int:
    args = parse_args(argv)
    # after parsing, so that --help and typing errors answer at once
    from mmext.checkpoints.files import read_state_dict
    from mmext.checkpoints.vit import detect_layout
    target = Path(args.target)
    try:
        if target.exists() and not args.overwrite:
            raise ValueError(f'{target} exists; --overwrite replaces it')
        if target.suffix == '.safetensors' and args.to != 'timm':
            raise ValueError(f'--to {args.to} nests its tensors: give TARGET the suffix .pth')
        state = read_state_dict(args.source, args.prefix)
        layout = detect_layout(state)
        out = convert(state, args.to, args.head, args.backbone_only, args.drop_key_bias)
    except (ValueError, FileNotFoundError) as error:
        print(f'error: {error}', file=sys.stderr)
        return 1
    target.parent.mkdir(parents=True, exist_ok=True)
    save(out, target, args.to)
    print(f'{args.source} ({layout}) -> {target} ({args.to}): {len(out)} of {len(state)} tensors')
    return 0


if __name__ == '__main__':
    with one_clear_error():
        sys.exit(main())
