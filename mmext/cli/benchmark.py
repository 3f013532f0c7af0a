"""Time and memory of attention operators, layers, backbones and detectors, side by side.

Layers and operators need torch and timm alone, so this is imported where no OpenMMLab package is.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import timm
import torch
import torch.nn.functional as F
from timm.layers import Attention
from torch import Tensor, nn

from mmext import ops
from mmext.analysis import timing
from mmext.cli.arguments import ratio_word, use_device
from mmext.layers import DMSA, MSSA, TSSA, BiasedAttention

DTYPES = {'fp32': torch.float32, 'bf16': torch.bfloat16, 'fp16': torch.float16}
TIMM = {'deit-tiny': 'deit_tiny_patch16_224', 'deit-small': 'deit_small_patch16_224',
        'deit-base': 'deit_base_patch16_224', 'vit-large': 'vit_large_patch16_224'}
TOST = {'deit-tiny': 'tiny', 'deit-small': 'small'}
PLAIN = 'plain'
LABELS = {'MHSA, math': 'MHSA, naive', 'bias': 'key bias, dense', 'tssa': 'TSSA', 'dmsa': 'DMSA',
          'tssa naive': 'TSSA as published', 'mssa': 'MSSA'}


class NaiveTSSA(TSSA):
    """TSSA step by step as its public code has it (arXiv 2412.17810), every temporary kept."""

    def forward(self, x: Tensor, hw=None, valid=None) -> Tensor:
        w = self.qkv(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
        normed = F.normalize(w, dim=-2)
        pi = ((normed**2).sum(-1) * self.temp).softmax(1)
        m = ((pi / (pi.sum(-1, keepdim=True) + 1e-8)).unsqueeze(-2) @ w**2)
        y = -(w * pi.unsqueeze(-1)) * (1 / (1 + m))
        return self.to_out(y.transpose(1, 2).flatten(2))


# ---- what is compared: name -> callable without arguments -------------------------------------


def grid_of(num_tokens: int) -> tuple[int, int]:
    """Grid of the patch tokens: a square one after at most one class token, else one row."""
    for patches in (num_tokens, num_tokens - 1):
        side = math.isqrt(patches)
        if side * side == patches:
            return side, side
    return 1, num_tokens


def keep_name(keep: float | tuple[float, ...]) -> str:
    return f'pruned {ratio_word(keep)}'


def operators(args, batch: int, num_tokens: int, dtype: torch.dtype) -> dict[str, Callable]:
    """Attention without projections, from qkv as the projection writes it."""
    heads, width, device = args.heads, args.dim // args.heads, args.device
    qkv = torch.randn(batch, num_tokens, 3, heads, width, device=device, dtype=dtype)
    q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
    bias = torch.randn(batch, heads, num_tokens, device=device)
    temp = torch.ones(heads, 1, device=device)
    if args.train:
        qkv.requires_grad_()
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        bias.requires_grad_()

    def pruned(ratio: float) -> Tensor:
        index, _ = ops.top_k_columns(bias, ratio)
        return ops.key_bias_attention(q, *ops.gather_kv(qkv, index), bias.gather(-1, index))

    functions = {
        PLAIN: lambda: F.scaled_dot_product_attention(q, k, v),
        'bias': lambda: ops.key_bias_attention(q, k, v, bias),
        **{keep_name(r): partial(pruned, r) for r in args.keep_ratio if isinstance(r, float)},
        'tssa': lambda: ops.tssa(v, temp)[0],
        'dmsa': lambda: ops.dmsa(v, bias)[0],
    }
    if not args.train:
        return functions

    def both(function):
        function().float().sum().backward(retain_graph=True)
        qkv.grad = bias.grad = None

    return {name: partial(both, function) for name, function in functions.items()}


def layers(args, batch: int, num_tokens: int, dtype: torch.dtype) -> dict[str, nn.Module]:
    dim, heads = args.dim, args.heads
    prune = {}
    for keep in args.keep_ratio:
        if not isinstance(keep, float):
            continue
        for mode in (('gather', 'mask') if args.train else ('gather',)):
            name = keep_name(keep) + (f' {mode}' if args.train else '')
            prune[name] = BiasedAttention(
                dim, heads, qkv_bias=True, keep_ratio=keep, train_mode=mode, gather=args.gather)
    return {
        PLAIN: Attention(dim, heads, qkv_bias=True),
        'bias': BiasedAttention(dim, heads, qkv_bias=True),
        **prune,
        'tssa naive': NaiveTSSA(dim, heads),
        'tssa': TSSA(dim, heads),
        'dmsa': DMSA(dim, heads),
        'mssa': MSSA(dim, heads),
    }


def backbones(args, shape: tuple[int, int]) -> dict[str, nn.Module]:
    """Dense features of an image, without class token; needs mmengine."""
    from mmext.models import DMST, BiasPrunedViT
    plain = timm.create_model(
        TIMM[args.arch], img_size=shape, num_classes=0, class_token=False, global_pool='',
        dynamic_img_size=False)
    ours = partial(BiasPrunedViT, args.arch, img_size=shape, with_cls_token=False,
                   out_type='featmap', gather=args.gather)
    found = {PLAIN: plain, 'bias': ours()}
    for keep in args.keep_ratio:
        for mode in (('gather', 'mask') if args.train else ('gather',)):
            name = keep_name(keep) + (f' {mode}' if args.train else '')
            found[name] = ours(keep_ratio=keep, train_mode=mode)
    if args.arch in TOST:
        bodies = {'dmst': 'dmsa', 'tost': 'tssa', 'tost naive': dict(type=NaiveTSSA),
                  'softmax in its body': 'mhsa'}
        found |= {name: DMST(TOST[args.arch], attn=attn, out_type='featmap')
                  for name, attn in bodies.items()}
    return found


def whole_models(args) -> dict[str, nn.Module]:
    """The classifier or detector of --config: plain, with key bias and pruned, with the weights of
    --checkpoint. A backbone without key bias stands alone.

    Raises:
        DoesNotFit: the checkpoint lacks more than a key bias, or has more.
    """
    import mmext.registry  # noqa: F401  (prepares mmdet and mmpretrain)
    from mmext.cli.launch import build_model, load_config
    config = args.config[0]
    cfg = load_config(config, None, None, 'none')
    variants = variants_of(cfg, args)
    sized = cfg.model.backbone.type.endswith(('BiasPrunedViT', 'StructuredPrunedViT'))
    if args.level == 'classifier' and sized:  # positions need no resizing in forward
        variants = {name: {**options, 'img_size': args.shape} for name, options in variants.items()}
    found = {}
    for name, options in variants.items():
        options = {f'model.backbone.{key}': value for key, value in options.items()}
        found[name] = build_model(load_config(config, options, None, 'none'))
        if args.checkpoint:
            load_weights(found[name], args.checkpoint)
    return found


def variants_of(cfg, args) -> dict[str, dict]:
    """Options of a config's backbone by name: plain, with key bias, and pruned by --keep-ratio."""
    if not cfg.model.backbone.type.endswith('BiasPrunedViT'):
        return {PLAIN: {}}
    return {PLAIN: dict(key_bias=False, keep_ratio=None, gather=args.gather),
            'bias': dict(key_bias=True, keep_ratio=None, gather=args.gather),
            **{keep_name(k): dict(key_bias=True, keep_ratio=k, gather=args.gather)
               for k in args.keep_ratio}}


def load_weights(model: nn.Module, checkpoint: str) -> None:
    """Load a file by value; it may differ in the key bias.

    Raises:
        DoesNotFit: it differs in more.
    """
    from mmext.checkpoints.files import read_state_dict
    from mmext.checkpoints.fit import require
    from mmext.checkpoints.official import own_names
    state = read_state_dict(checkpoint)
    require(model, own_names(state, model) or state, checkpoint, lambda key: '.key_bias.' in key)


def real_image(args, model: nn.Module) -> Tensor:
    """The file of --image at the size of --shape, normalized as the model does it: (1, 3, H, W)."""
    import cv2
    image = cv2.imread(args.image)
    if image is None:
        raise ValueError(f'--image {args.image} cannot be read as an image')
    image = cv2.resize(image, args.shape[::-1], interpolation=cv2.INTER_CUBIC)
    image = torch.from_numpy(image).permute(2, 0, 1).float()
    preprocessor = model.data_preprocessor.cpu()
    if getattr(preprocessor, 'to_rgb', False) or getattr(
            preprocessor, '_channel_conversion', False):
        image = image.flip(0)
    return ((image - preprocessor.mean) / preprocessor.std)[None]


def classify(model: nn.Module, image: Tensor) -> Tensor:
    """Scores (B, classes) of a whole classifier, class token and head included."""
    return model(image, mode='tensor')


def detect_all(model: nn.Module, image: Tensor) -> object:
    """What a detector does to predict, with its last NMS and masks pasted into the image."""
    from mmext.analysis.flop_counter import fake_samples
    return model.predict(image, fake_samples(image), rescale=True)


def detect(model: nn.Module, image: Tensor, proposals: int = 1000, boxes: int = 100,
           samples: list | None = None) -> object:
    """All parts of a two-stage detector with proposals' NMS, on fixed numbers of regions.

    ``samples`` tell what of the input is image; None: all of it.

    Random weights find no objects, hence the fixed numbers; pasting masks into the image and
    the last NMS are left out. A model of another kind does what it does to predict.
    """
    from mmext.analysis.flop_counter import fake_samples, spread_boxes
    samples = fake_samples(image) if samples is None else samples
    if not hasattr(model, 'roi_head'):
        return model.predict(image, samples, rescale=False)
    shape = tuple(samples[0].img_shape)
    features = model.extract_feat(image)
    model.rpn_head.predict(features, samples, rescale=False)
    if hasattr(model, 'semantic_head'):
        model.semantic_head.predict(features, [sample.metainfo for sample in samples])
    roi = model.roi_head
    found = roi._bbox_forward(features, spread_boxes(proposals, shape, features[0]))
    if roi.with_mask:
        return roi._mask_forward(features, spread_boxes(boxes, shape, features[0]))
    return found


# ---- measuring ---------------------------------------------------------------------------------


def candidates(args, batch: int, extent: int | tuple[int, int], dtype: torch.dtype
               ) -> tuple[dict[str, Callable], dict[str, list[Tensor]]]:
    """Callables of one table, and the tensors that exist anyway (not saved for backward)."""
    if args.level == 'operator':
        return only(args, operators(args, batch, extent, dtype)), {}
    if args.level == 'layer':
        modules = layers(args, batch, extent, dtype)
        x = torch.randn(batch, extent, args.dim, device=args.device, dtype=dtype)
        hw = grid_of(extent)
        call = {name: (lambda m: lambda x: m(x) if isinstance(m, Attention) else m(x, hw))(module)
                for name, module in modules.items()}
    else:
        modules = backbones(args, extent) if args.level == 'backbone' else args.models
        x = torch.randn(batch, 3, *extent, device=args.device, dtype=dtype)
        if args.image:
            x = real_image(args, modules[PLAIN]).to(x).expand(batch, -1, -1, -1).contiguous()
        whole = {'classifier': classify, 'detector': detect_all if args.image else detect}
        call = {name: partial(whole[args.level], module) if args.level in whole else module
                for name, module in modules.items()}
    x.requires_grad_(args.train)
    functions, ignored = {}, {}
    for name, function in only(args, call).items():
        module = modules[name].to(args.device, dtype).train(args.train)
        if args.compile:
            module.compile(dynamic=False)
        ignored[name] = [x, *module.parameters()]
        functions[name] = partial(step if args.train else inference, module, function, x)
    return functions, ignored


def only(args, call: dict) -> dict:
    """Those that --only names, and the baseline."""
    unknown = [name for name in args.only or () if name not in call]
    if unknown:
        raise ValueError(f'--only {", ".join(map(repr, unknown))}: on this table are '
                         f'{", ".join(map(repr, call))}')
    return {name: f for name, f in call.items() if not args.only or name in (*args.only, PLAIN)}


def inference(module: nn.Module, function: Callable, x: Tensor) -> object:
    with torch.inference_mode():
        return function(x)


def step(module: nn.Module, function: Callable, x: Tensor) -> None:
    """Forward and backward; gradients go afterwards, so that every step's peak counts its own."""
    out = function(x)
    out = out[-1] if isinstance(out, tuple) else out
    out.float().sum().backward()
    module.zero_grad(set_to_none=True)
    x.grad = None


def logits_gib(args, batch: int, extent, dtype: torch.dtype) -> float:
    """Size of one layer's N x N matrices, what the math backend needs at least."""
    n = extent if args.level in ('operator', 'layer') else math.prod(side // 16 for side in extent)
    heads = args.heads
    if args.level == 'classifier':
        heads = getattr(args.models[PLAIN].backbone, 'num_heads', heads)
    if args.level == 'backbone':
        heads = timm.create_model(TIMM[args.arch], pretrained=False).blocks[0].attn.num_heads
    return batch * heads * n * n * max(dtype.itemsize, 4) / 2**30


def measure(args, batch: int, extent, dtype_name: str, progress) -> dict:
    """One table: candidate -> backend -> numbers."""
    dtype = DTYPES[dtype_name]
    torch.manual_seed(0)
    functions, ignored = candidates(args, batch, extent, dtype)
    rows = {name: {} for name in functions}
    for backend in args.backend:
        refusal = timing.backend_refusal(backend, args.device, dtype)
        if refusal:
            progress.write(f'{backend} backend left out, not available on {args.device} in '
                           f'{dtype_name}: {refusal}')
            continue
        if backend == 'math' and logits_gib(args, batch, extent, dtype) > args.math_limit:
            progress.write(f'math backend left out at {extent}: its matrices exceed '
                           f'{args.math_limit} GiB (--math-limit)')
            continue
        with timing.attention_backend(backend):
            times = timing.time_alternating(
                functions, args.device, args.warmup, args.repeat, progress.update)
            for name, value in times.items():
                rows[name][backend] = cell_of(value, times[PLAIN])
                if not args.no_memory:
                    rows[name][backend]['peak_mib'] = (
                        timing.peak_bytes(functions[name], args.device) / 2**20)
                if args.train and ignored and not args.no_memory and not args.compile:
                    rows[name][backend]['saved_mib'] = timing.saved_bytes(
                        functions[name], ignored[name]) / 2**20
    return {'batch': batch, 'extent': extent, 'dtype': dtype_name, 'rows': rows}


def cell_of(value: timing.Timing, plain: timing.Timing) -> dict[str, float]:
    """One measured cell of a table, as JSON files hold it."""
    return {
        'ms': 1e3 * value.median, 'ms_p10': 1e3 * value.low, 'ms_p90': 1e3 * value.high,
        'ms_mean': 1e3 * value.mean, 'ms_std': 1e3 * value.std,
        'speedup': plain.median / value.median}


def print_table(args, table: dict) -> None:
    extent = table['extent']
    what = f'N {extent}' if isinstance(extent, int) else f'image {extent[0]} x {extent[1]}'
    print(f"\n{args.level}, {what}, batch {table['batch']}, {table['dtype']}, "
          f"{'forward + backward' if args.train else 'forward'}"
          f"{', compiled' if args.compile else ''}")
    backends = [b for b in args.backend if any(b in row for row in table['rows'].values())]
    head = ''.join(f'{b + " ms":>12}{"p10 - p90":>20}{"mean ± std":>20}{"x":>7}' for b in backends)
    print(f"{'':<26}{head}{'peak MiB':>10}{'saved MiB':>11}")
    for name, row in table['rows'].items():
        line = f'{name:<26}'
        for b in backends:
            cell = row.get(b)
            spread = f"{cell['ms_p10']:.2f} - {cell['ms_p90']:.2f}"
            mean = f"{cell['ms_mean']:.2f} ± {cell['ms_std']:.2f}"
            line += f"{cell['ms']:12.2f}{spread:>20}{mean:>20}{cell['speedup']:7.2f}"
        first = row.get(backends[0], {}) if backends else {}
        for key, width in (('peak_mib', 10), ('saved_mib', 11)):
            line += f"{first[key]:{width}.1f}" if key in first else f"{'-':>{width}}"
        print(line)


def plot(args, tables: list[dict], path: str) -> None:
    """Time and peak memory over the tokens, one line per candidate, for the first batch, dtype."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    first = tables[0]
    tables = [t for t in tables if (t['batch'], t['dtype']) == (first['batch'], first['dtype'])]
    lines = {}
    for table in tables:
        for name, row in table['rows'].items():
            for backend, cell in row.items():
                if backend == 'math' and name != PLAIN:
                    continue
                label = f'MHSA, {backend}' if name == PLAIN else name
                lines.setdefault(label, []).append(
                    (table['extent'], cell['ms'], cell.get('peak_mib')))
    figure = Figure(figsize=(11, 4.5), layout='constrained')
    for axis, column, label in zip(figure.subplots(1, 2), (1, 2), ('time, ms', 'peak memory, MiB'),
                                   strict=True):
        for name, points in lines.items():
            drawn = [(p[0], p[column]) for p in points if p[column]]
            if drawn:
                # lines that lie on another one: dashed, so that both are seen
                style = '--' if name in ('bias', 'tssa') else '-'
                axis.plot(*zip(*drawn, strict=True), style, marker='o', markersize=4,
                          label=LABELS.get(name, name))
        axis.set(xscale='log', yscale='log', ylabel=label, xlabel='tokens N')
        axis.grid(alpha=.3, which='both')
    figure.axes[0].legend(fontsize=8)
    figure.suptitle(f"One {args.level}, batch {first['batch']}, {first['dtype']}; "
                    f"{timing.environment(args.device)['hardware']}", fontsize=9)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure).print_figure(path, dpi=130)


class Progress:
    """A bar on a terminal, nothing in a log file."""

    def __init__(self, total: int):
        from tqdm import tqdm
        self.bar = tqdm(total=total, disable=not sys.stderr.isatty(), leave=False)

    def update(self) -> None:
        self.bar.update(1)

    def write(self, text: str) -> None:
        self.bar.write(text, file=sys.stderr)


def layer_settings(**given) -> argparse.Namespace:
    """What :func:`run` needs for layer tables of DeiT-S; ``given``: tokens, device, repeat, ..."""
    settings = {
        'level': 'layer', 'dim': 384, 'heads': 6, 'keep_ratio': [.5, .3, .1], 'gather': 'auto',
        'only': None, 'image': None, 'train': False, 'compile': False, 'warmup': 3,
        'no_memory': False, 'threads': None, 'json': None, 'plot': None}
    return argparse.Namespace(**settings | given)


def run(args) -> dict:
    """Measure and print every table; ``args`` of tools/analysis_tools/benchmark.py."""
    use_device(args)
    if args.threads:
        torch.set_num_threads(args.threads)
    environment = timing.environment(args.device)
    print(' | '.join(environment.values()))
    tables = []
    if args.level in ('images', 'training'):
        from mmext.cli import benchmark_data
        progress = Progress(args.warmup + args.repeat * args.number)
        table = {'images': benchmark_data.images_table, 'training': benchmark_data.training_table}
        tables.append(described(args, table[args.level](args, 'fp32', progress)))
        benchmark_data.print_parts(args, tables[0])
    else:
        if args.level in ('classifier', 'detector'):
            args.models = whole_models(args)
        extents = args.tokens if args.level in ('operator', 'layer') else [args.shape]
        jobs = [(b, e, d) for d in args.dtype for b in args.batch_size for e in extents]
        progress = Progress(len(jobs) * len(args.backend) * (args.warmup + args.repeat))
        for job in jobs:
            tables.append(described(args, measure(args, *job, progress)))
            print_table(args, tables[-1])
    progress.bar.close()
    settings = {key: value for key, value in vars(args).items() if key != 'models'}
    settings['keep_ratio'] = list(map(ratio_word, args.keep_ratio))
    result = {'environment': environment, 'settings': settings, 'tables': tables}
    if args.json:
        Path(args.json).parent.mkdir(parents=True, exist_ok=True)
        Path(args.json).write_text(json.dumps(result, indent=1) + '\n')
    if args.plot:
        plot(args, tables, args.plot)
    return result


def described(args, table: dict) -> dict:
    """The table with what ``benchmark_compare`` tells tables apart by."""
    return {'level': args.level, 'train': args.train, 'compile': args.compile} | table
