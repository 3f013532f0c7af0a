"""A classifier, a backbone, or a detector's backbone and neck as a file that runs without mmext."""

import json
from pathlib import Path

import torch
from torch import Tensor, nn

import mmext.registry  # noqa: F401  (prepares mmcv, mmdet and mmpretrain for this machine)
from mmext.cli.checkpoint_check import check_fits
from mmext.cli.config_check import ConfigError
from mmext.cli.launch import build_model, default_shape, load_config, set_keep_ratio
from mmext.cli.outputs import check_outputs
from mmext.cli.predictor import class_names, test_dataset


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


def build_part(args) -> tuple[Exportable, tuple[int, int]]:
    """The part to export in eval mode with its weights, and the size of its input."""
    cfg = load_config(args.config, args.cfg_options, None, 'none')
    model = build_model(cfg).requires_grad_(False)
    if args.checkpoint:
        check_fits(args.checkpoint, model)
    if 'keep_ratio' in args:
        set_keep_ratio(model.backbone, args.keep_ratio)
    if hasattr(model.backbone, 'set_gather'):
        # the other form works through the heads in portions that depend on the batch size
        model.backbone.set_gather('after')
    part = 'backbone' if args.backbone_only else 'neck' if args.neck else 'classifier'
    if part == 'classifier' and not hasattr(model, 'head'):
        raise ConfigError(f'{type(model).__name__}: what its heads compute depends on the image; '
                         'export --neck (backbone and neck) or --backbone-only')
    if part == 'neck' and getattr(model, 'neck', None) is None:
        raise ConfigError(f'--neck: {type(model).__name__} of this config has no neck')
    exportable, size = Exportable(model, part).eval(), args.shape or default_shape(model, cfg)
    exportable.facts = facts(cfg, model, size, args.checkpoint)
    return exportable, size


def facts(cfg, model: nn.Module, size: tuple[int, int], checkpoint: str | None) -> dict[str, str]:
    """What one must know to use the exported file, as JSON by name: see docs/deploy.md."""
    preprocessor = model.data_preprocessor
    swaps = getattr(preprocessor, 'to_rgb', getattr(preprocessor, '_channel_conversion', False))
    known = {'height': size[0], 'width': size[1], 'channel_order': 'RGB' if swaps else 'BGR',
             'mean': [0.] * 3, 'std': [1.] * 3}
    if getattr(preprocessor, '_enable_normalize', False):
        known.update({name: getattr(preprocessor, name).flatten().tolist()
                      for name in ('mean', 'std')})
    if cfg.get('test_dataloader') or cfg.get('val_dataloader'):
        names, _ = class_names(test_dataset(cfg), checkpoint, cfg.default_scope)
        if names is not None:
            known['classes'] = names
    return {name: json.dumps(value) for name, value in known.items()}


def add_metadata(path: str, metadata: dict[str, str]) -> None:
    """Put texts by name into an ONNX file's ``metadata_props``."""
    import onnx
    model = onnx.load(path)
    onnx.helper.set_model_props(model, metadata)
    onnx.save(model, path)


def write(part: Exportable, size: tuple[int, int], fmt: str, out: str, opset: int = 18) -> None:
    """Write ``part`` for images of ``size`` and any batch size to the file ``out``."""
    image = torch.rand(2, 3, *size)
    dynamic = {'image': {0: torch.export.Dim('batch', min=1, max=1024)}}
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    if fmt == 'torch_export':
        torch.export.save(torch.export.export(part, (image,), dynamic_shapes=dynamic), out)
        return
    with torch.no_grad():
        levels = len(part(image))
    names = ['logits'] if part.head is not None else [f'output_{i}' for i in range(levels)]
    torch.onnx.export(
        part, (image,), out, dynamo=True, opset_version=opset, dynamic_shapes=dynamic,
        input_names=['image'], output_names=names, external_data=False, verbose=False)
    add_metadata(out, part.facts)


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
            raise ConfigError(f'the exported model gives {tuple(got.shape)}, the model '
                             f'{tuple(want.shape)}')
        worst = max(worst, (got - want).abs().max().item() / max(1.0, want.abs().max().item()))
    return worst


def run(args) -> int:
    """Export, load again and compare; 1 where the two differ. ``args`` of export.py."""
    check_outputs([args.out], args.overwrite, [args.config, args.checkpoint])
    part, size = build_part(args)
    write(part, size, args.format, args.out, args.opset)
    exported = runner(args.format, args.out)
    worst = max(largest_difference(part, exported, size, batch) for batch in (1, 2, 3))
    passed = worst <= args.tolerance
    print(f'{args.out}: {Path(args.out).stat().st_size / 1e6:.1f} MB, image (B, 3, {size[0]}, '
          f'{size[1]}), largest difference from the model {worst:.1e} '
          f'({"within" if passed else "ABOVE"} {args.tolerance:g})')
    return 0 if passed else 1
