"""Export a classifier, a backbone, or a detector's backbone and neck for running without mmext.

The exported model takes a float tensor `image` (B, 3, H, W) of a fixed size and any batch size,
normalized as the config's data preprocessor does it. It gives `scores` (B, classes; before the
softmax) for a classifier, else one `output_i` a feature level. Pruning is part of it as in
validation. It is then loaded again and compared with the model on batches of 1, 2 and 3.

Examples:
    python tools/model_converters/export.py CONFIG CKPT --format onnx --out model.onnx
    python tools/model_converters/export.py CONFIG --format torch_export --shape 1024 --neck \\
        --out neck.pt2
"""

import argparse
import importlib.util
import sys
from pathlib import Path

import torch
from mmengine.config import DictAction
from torch import Tensor, nn

import mmext.registry  # noqa: F401  (prepares mmcv, mmdet and mmpretrain for this machine)
from mmext.cli.checkpoint_check import check_fits
from mmext.cli.launch import build_model, load_config, one_clear_error
from mmext.cli.outputs import add_overwrite, check_outputs

SUFFIX = {'onnx': '.onnx', 'torch_export': '.pt2'}


class Exportable(nn.Module):
    """The part of a model whose graph does not depend on the image.

    Args:
        model: classifier or detector of a config.
        part: 'classifier', 'neck' (backbone and neck) or 'backbone'.
    """

    def __init__(self, model: nn.Module, part: str):
        super().__init__()
        self.backbone = model.backbone
        self.neck = model.neck if part != 'backbone' and getattr(model, 'neck', None) else None
        self.head = model.head if part == 'classifier' else None

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        x = self.backbone(image)
        x = x if self.neck is None else self.neck(x)
        return tuple(x) if self.head is None else (self.head(x),)


def parse_args(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('config', help='config file of a classifier or detector')
    parser.add_argument('checkpoint', nargs='?', help='without it the weights are random')
    parser.add_argument('--format', choices=list(SUFFIX), default='onnx')
    parser.add_argument('--out', required=True, help='file to write, *.onnx or *.pt2')
    parser.add_argument(
        '--shape', type=int, nargs='+', metavar=('H', 'W'),
        help='input height and width, or one number for both (default: what the config says)')
    part = parser.add_mutually_exclusive_group()
    part.add_argument('--backbone-only', action='store_true')
    part.add_argument('--neck', action='store_true', help='backbone and neck of a detector')
    parser.add_argument(
        '--keep-ratio', nargs='+', metavar='R',
        help="'none' for dense, one ratio, two for a linear schedule over depth, or one per block "
        '(default: what the config says)')
    parser.add_argument('--opset', type=int, default=18, help='ONNX opset, at least 17')
    parser.add_argument(
        '--tolerance', type=float, default=1e-4,
        help='largest difference from the model that passes, in units of its largest output where '
        'that exceeds 1')
    parser.add_argument('--cfg-options', nargs='+', action=DictAction, help='override the config')
    add_overwrite(parser)
    args = parser.parse_args(argv)
    if args.shape and (len(args.shape) > 2 or min(args.shape) < 1):
        parser.error(f'--shape takes one or two positive numbers, got {args.shape}')
    if args.opset < 17:
        parser.error(f'--opset {args.opset} is too old, 17 or more is needed')
    if not args.out.endswith(SUFFIX[args.format]):
        parser.error(f'--out {args.out} must end in {SUFFIX[args.format]} for '
                     f'--format {args.format}')
    missing = [name for name in ('onnx', 'onnxscript', 'onnxruntime')
               if args.format == 'onnx' and importlib.util.find_spec(name) is None]
    if missing:
        parser.error(f'--format onnx needs {", ".join(missing)}: pip install {" ".join(missing)}')
    return args


def build_part(args) -> tuple[Exportable, tuple[int, int]]:
    """The part to export in eval mode with its weights, and the size of its input."""
    cfg = load_config(args.config, args.cfg_options, None, 'none')
    model = build_model(cfg).requires_grad_(False)
    if args.checkpoint:
        check_fits(args.checkpoint, model)
    if args.keep_ratio:
        if not hasattr(model.backbone, 'set_keep_ratio'):
            raise SystemExit(f'--keep-ratio: backbone {type(model.backbone).__name__} does not '
                             'prune; leave the option out')
        model.backbone.set_keep_ratio(keep_ratio(args.keep_ratio))
    if hasattr(model.backbone, 'set_gather'):
        # the other form works through the heads in portions that depend on the batch size
        model.backbone.set_gather('after')
    part = 'backbone' if args.backbone_only else 'neck' if args.neck else 'classifier'
    if part == 'classifier' and not hasattr(model, 'head'):
        raise SystemExit(f'{type(model).__name__}: what its heads compute depends on the image; '
                         'export --neck (backbone and neck) or --backbone-only')
    if part == 'neck' and getattr(model, 'neck', None) is None:
        raise SystemExit(f'--neck: {type(model).__name__} of this config has no neck')
    return Exportable(model, part).eval(), input_size(args, model, cfg)


def keep_ratio(words: list[str]):
    if words == ['none']:
        return None
    try:
        ratios = [float(word) for word in words]
    except ValueError:
        raise SystemExit(f"--keep-ratio takes 'none' or numbers, got {' '.join(words)}") from None
    return ratios[0] if len(ratios) == 1 else tuple(ratios)


def input_size(args, model, cfg) -> tuple[int, int]:
    """As asked for, else what the backbone was built for, else 224 or, for a detector, 1024."""
    if args.shape:
        return tuple(args.shape * 2)[:2]
    if hasattr(model.backbone, 'grid'):
        return tuple(side * model.backbone.patch_size for side in model.backbone.grid)
    side = 1024 if cfg.get('default_scope') == 'mmdet' else 224
    return side, side


def export(part: Exportable, size: tuple[int, int], fmt: str, out: str, opset: int = 18) -> None:
    """Write ``part`` for images of ``size`` and any batch size to the file ``out``."""
    image = torch.rand(2, 3, *size)
    dynamic = {'image': {0: torch.export.Dim('batch', min=1, max=1024)}}
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    if fmt == 'torch_export':
        torch.export.save(torch.export.export(part, (image,), dynamic_shapes=dynamic), out)
        return
    with torch.no_grad():
        levels = len(part(image))
    names = ['scores'] if part.head is not None else [f'output_{i}' for i in range(levels)]
    torch.onnx.export(
        part, (image,), out, dynamo=True, opset_version=opset, dynamic_shapes=dynamic,
        input_names=['image'], output_names=names, external_data=False, verbose=False)


def runner(fmt: str, out: str):
    """A function from images to outputs that runs the exported file."""
    if fmt == 'torch_export':
        module = torch.export.load(out).module()
        return lambda image: module(image)
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(out, options, providers=['CPUExecutionProvider'])
    return lambda image: tuple(
        torch.from_numpy(output) for output in session.run(None, {'image': image.numpy()}))


@torch.no_grad()
def largest_difference(part: Exportable, run, size: tuple[int, int], batch: int) -> float:
    """Between the exported file and the model, relative to the largest output above 1."""
    image = torch.randn(batch, 3, *size, generator=torch.Generator().manual_seed(batch))
    worst = 0.0
    for got, want in zip(run(image), part(image), strict=True):
        if got.shape != want.shape:
            raise SystemExit(f'the exported model gives {tuple(got.shape)}, the model '
                             f'{tuple(want.shape)}')
        worst = max(worst, (got - want).abs().max().item() / max(1.0, want.abs().max().item()))
    return worst


def main(argv=None) -> int:
    args = parse_args(argv)
    check_outputs([args.out], args.overwrite, [args.config, args.checkpoint])
    part, size = build_part(args)
    export(part, size, args.format, args.out, args.opset)
    run = runner(args.format, args.out)
    worst = max(largest_difference(part, run, size, batch) for batch in (1, 2, 3))
    passed = worst <= args.tolerance
    print(f'{args.out}: {Path(args.out).stat().st_size / 1e6:.1f} MB, image (B, 3, {size[0]}, '
          f'{size[1]}), largest difference from the model {worst:.1e} '
          f'({"within" if passed else "ABOVE"} {args.tolerance:g})')
    return 0 if passed else 1


if __name__ == '__main__':
    with one_clear_error():
        sys.exit(main())
