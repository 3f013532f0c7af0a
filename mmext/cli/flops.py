"""FLOPs and parameters of the model of a config, by part."""

from contextlib import nullcontext

import torch
from torch import nn

import mmext.registry  # noqa: F401  (prepares mmcv, mmdet and mmpretrain for this machine)
from mmext.analysis.flop_counter import count_by_part, drop_values
from mmext.analysis.timing import check_device
from mmext.cli.arguments import ratio_word
from mmext.cli.config_check import ConfigError
from mmext.cli.launch import build_model, default_shape, load_config, set_keep_ratio

UNITS = ('GFLOPs = 2 x MACs / 1e9 of convolutions, linear layers, matrix products and attention; '
         'no softmax, normalization, activation, top-k or gather.')
AS_CONFIG = 'as in the config'


def parameters(model: nn.Module, part: str) -> int:
    """Parameters of a part of ``count_by_part`` in the model."""
    module = model
    if part in ('bbox_head', 'mask_head') and hasattr(model, 'roi_head'):
        module = model.roi_head
    return sum(p.numel() for p in getattr(module, part).parameters())


def count_config(config: str, shape: tuple[int, int] | None = None, keep_ratio=AS_CONFIG,
                 backbone_only: bool = False, gather: str = 'after', proposals: int = 1000,
                 boxes: int = 100, device: str = 'cpu', shapes_only: bool = False,
                 modules: int = 0, cfg_options: dict | None = None) -> dict:
    """Build the model with random weights, run it once on a random image, count.

    Args:
        config: file of a classifier or detector.
        shape: (H, W) of the image; None: what the model was built for.
        keep_ratio: as ``set_keep_ratio`` of the backbone takes it; AS_CONFIG leaves it alone.
        gather: 'after', 'before' or 'auto': where kept columns are gathered, see get_flops.py.
        proposals, boxes: regions of the box and the mask head of a two-stage detector.
        shapes_only: compute nothing, see ``drop_values``.
        modules: depth of names down to which modules are listed.

    Returns:
        what get_flops.py prints and writes: ``gflops``, ``params``, the same by ``parts``, ...
    """
    check_device(device)
    cfg = load_config(config, cfg_options, None, 'none')
    model = build_model(cfg)
    if shapes_only and hasattr(model, 'roi_head') and not backbone_only:
        raise ConfigError('--shapes-only: the regions of a two-stage detector have values; leave '
                          'it out, or add --backbone-only')
    if keep_ratio != AS_CONFIG:
        set_keep_ratio(model.backbone, keep_ratio)
    if hasattr(model.backbone, 'set_gather'):
        model.backbone.set_gather(gather)
    shape = shape or default_shape(model, cfg)

    model = model.to(device)
    with drop_values(model) if shapes_only else nullcontext():
        image = torch.rand(1, 3, *shape, device=device)
        counts = count_by_part(model, image, proposals, boxes, backbone_only)

    parts = {
        name: {'gflops': count.gflops, 'params': parameters(model, name)}
        for name, count in counts.items()
    }
    result = {
        'config': str(config),
        'shape': list(shape),
        'keep_ratio': AS_CONFIG if keep_ratio == AS_CONFIG else ratio_word(keep_ratio),
        'gather': gather,
        'device': device,
        'units': UNITS,
        'parts': parts,
        'gflops': sum(part['gflops'] for part in parts.values()),
        'params': sum(part['params'] for part in parts.values()),
    }
    if 'rpn_head' in parts:
        result['proposals'], result['boxes'] = proposals, boxes
    if modules:
        result['modules'] = {
            name: flops / 1e9
            for count in counts.values() for name, flops in count.by_module.items()
            if name.count('.') < modules
        }
    return result
