"""A classifier, backbone, detector or its backbone and neck as a file that runs without mmext."""

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
        self.backbone, self.facts = model.backbone, {}
        self.neck = model.neck if part != 'backbone' and getattr(model, 'neck', None) else None
        self.head = model.head if part == 'classifier' else None

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        x = self.backbone(image)
        x = x if self.neck is None else self.neck(x)
        return tuple(x) if self.head is None else (self.head(x),)


def set_gather(backbone: nn.Module, one_image: bool) -> None:
    """Where the file is to drop columns: as it is fastest, if it takes one image at a time.

    Elsewhere the batch size is free, and gathering before the projection works through the heads
    in portions that depend on it.
    """
    if hasattr(backbone, 'set_gather'):
        backbone.set_gather('auto' if one_image else 'after')


def build_part(args) -> tuple[nn.Module, tuple[int, int]]:
    """The part to export in eval mode with its weights, and the size of its input."""
    cfg = load_config(args.config, args.cfg_options, None, 'none')
    model = build_model(cfg).requires_grad_(False)
    if args.checkpoint:
        check_fits(args.checkpoint, model)
    if 'keep_ratio' in args:
        set_keep_ratio(model.backbone, args.keep_ratio)
    set_gather(model.backbone, one_image=args.detector)
    size = args.shape or default_shape(model, cfg)
    known = facts(cfg, model, size, args.checkpoint)
    if args.detector:
        # not above: mmdet is imported where it is needed
        from mmext.models.detection.exportable import ExportableDetector
        part = ExportableDetector(model)
        known.update(part.facts)
        named, heads = len(known.get('classes', [])), part.classes
        if named != heads:
            raise ConfigError(f'--detector: the data set of the config names {named} classes, its '
                              f'roi_head has {heads}')
    else:
        part = Exportable(model, part_of(model, args))
    part.facts = known
    return part.eval(), size


def part_of(model: nn.Module, args) -> str:
    """'backbone', 'neck' or 'classifier', whichever the options name; ConfigError without it."""
    part = 'backbone' if args.backbone_only else 'neck' if args.neck else 'classifier'
    if part == 'classifier' and not hasattr(model, 'head'):
        raise ConfigError(f'{type(model).__name__}: export --detector (Faster and Mask R-CNN), '
                          '--neck (backbone and neck) or --backbone-only')
    if part == 'neck' and getattr(model, 'neck', None) is None:
        raise ConfigError(f'--neck: {type(model).__name__} of this config has no neck')
    return part


def facts(cfg, model: nn.Module, size: tuple[int, int], checkpoint: str | None) -> dict:
    """What one must know to use the exported file, by name: see docs/deploy.md."""
    preprocessor = model.data_preprocessor
    swaps = getattr(preprocessor, 'to_rgb', getattr(preprocessor, '_channel_conversion', False))
    known = {'height': size[0], 'width': size[1], 'channel_order': 'RGB' if swaps else 'BGR',
             'range': [0, 255], 'mean': [0.] * 3, 'std': [1.] * 3}
    if getattr(preprocessor, '_enable_normalize', False):
        known.update({name: getattr(preprocessor, name).flatten().tolist()
                      for name in ('mean', 'std')})
    if cfg.get('test_dataloader') or cfg.get('val_dataloader'):
        names, _ = class_names(test_dataset(cfg), checkpoint, cfg.default_scope)
        if names is not None:
            known['classes'] = names
    return known


def add_metadata(path: str, metadata: dict) -> None:
    """Put values by name, as JSON, into an ONNX file's ``metadata_props``."""
    import onnx
    model = onnx.load(path)
    onnx.helper.set_model_props(
        model, {name: json.dumps(value) for name, value in metadata.items()})
    onnx.save(model, path)


def write(part: nn.Module, size: tuple[int, int], fmt: str, out: str, opset: int = 18) -> None:
    """Write ``part`` for images of ``size`` to the file ``out``.

    A detector takes one image, every other part any batch size.
    """
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    if isinstance(part, Exportable):
        inputs = {'image': torch.rand(2, 3, *size)}
        dynamic = {'image': {0: torch.export.Dim('batch', min=1, max=1024)}}
        with torch.no_grad():
            levels = len(part(**inputs))
        names = ['logits'] if part.head is not None else [f'output_{i}' for i in range(levels)]
    else:
        inputs = {'image': 255 * torch.rand(1, 3, *size), 'extent': torch.tensor(size)}
        dynamic, names = None, part.outputs
    metadata = {**part.facts, 'outputs': names}
    if fmt == 'torch_export':
        program = torch.export.export(part, tuple(inputs.values()), dynamic_shapes=dynamic)
        torch.export.save(program, out, extra_files={'facts.json': json.dumps(metadata)})
        return
    torch.onnx.export(
        part, tuple(inputs.values()), out, dynamo=True, opset_version=opset,
        dynamic_shapes=dynamic, input_names=list(inputs), output_names=names, external_data=False,
        verbose=False)
    add_metadata(out, metadata)


def runner(fmt: str, out: str):
    """A function from the inputs to the outputs that runs the exported file."""
    if fmt == 'torch_export':
        return torch.export.load(out).module()
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(out, options, providers=['CPUExecutionProvider'])
    names = [one.name for one in session.get_inputs()]
    return lambda *inputs: tuple(
        torch.from_numpy(output) for output in session.run(
            None, {name: x.numpy() for name, x in zip(names, inputs, strict=True)}))


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


@torch.no_grad()
def share_unlike(part: nn.Module, run, size: tuple[int, int], tolerance: float
                 ) -> tuple[float, int]:
    """Share of detections on noise, of either side, without a like one on the other, and how many.

    Like are those of one label whose scores and masks differ by no more than ``tolerance`` and
    whose boxes differ by no more than that times the longer side of the canvas. Order does not
    count: scores that differ by rounding may change places.
    """
    height, width = size
    alone = total = 0
    for seed, extent in enumerate([size, (height, width // 2), (height // 2, width)]):
        generator = torch.Generator().manual_seed(seed)
        inputs = 255 * torch.rand(1, 3, *size, generator=generator), torch.tensor(extent)
        got, want = run(*inputs), part(*inputs)
        like = got[2][:, None] == want[2]
        for x, y, scale in zip((got[0], got[1], *got[3:]), (want[0], want[1], *want[3:]),
                               (max(size), 1, 1), strict=False):
            x, y = x.reshape(len(x), -1), y.reshape(len(y), -1)
            if len(x) and len(y):
                like &= torch.stack([(one - y).abs().amax(1) for one in x]) <= tolerance * scale
        alone += int((~like.any(0)).sum() + (~like.any(1)).sum())
        total += sum(like.shape)
    return alone / max(total, 1), total


def run(args) -> int:
    """Export, load again and compare; 1 where the two differ. ``args`` of export.py."""
    check_outputs([args.out], args.overwrite, [args.config, args.checkpoint])
    part, size = build_part(args)
    write(part, size, args.format, args.out, args.opset)
    exported = runner(args.format, args.out)
    words = f'{args.out}: {Path(args.out).stat().st_size / 1e6:.1f} MB, image '
    if args.detector:
        unlike, total = share_unlike(part, exported, size, args.tolerance)
        passed = unlike <= .01
        print(f'{words}(1, 3, {size[0]}, {size[1]}), {100 * unlike:.1f} % of {total} '
              f'detections on noise differ from the model\'s by more than {args.tolerance:g} '
              f'({"within" if passed else "ABOVE"} 1 %)')
        return 0 if passed else 1
    worst = max(largest_difference(part, exported, size, batch) for batch in (1, 2, 3))
    passed = worst <= args.tolerance
    print(f'{words}(B, 3, {size[0]}, {size[1]}), largest difference from the model {worst:.1e} '
          f'({"within" if passed else "ABOVE"} {args.tolerance:g})')
    return 0 if passed else 1
