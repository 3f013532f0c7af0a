"""Make a training checkpoint fit for publishing.

Keeps the weights and plain facts about the model; leaves out the optimizer, the schedulers, the log
history and paths of this machine. Of a run with a moving average the weights are that average
(mmengine saves it in their place); --raw publishes what was trained beside it. Writes
OUT-<first 8 digits of its SHA-256>.pth, which torch.load(..., weights_only=True) and mmengine read.
Every tool here verifies that hash. CHECKPOINT and other files stay as they are.

Example:
    python tools/model_converters/publish_model.py work_dirs/run/epoch_30.pth deit-s-bias.pth
"""

import argparse
import hashlib
import sys
import tempfile
from pathlib import Path

from mmext.cli.arguments import add_overwrite
from mmext.cli.clear_errors import one_clear_error
from mmext.cli.outputs import check_outputs

FACTS = ('dataset_meta', 'epoch', 'iter', 'mmengine_version')


def parse_args(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('checkpoint', help='checkpoint of a training run')
    parser.add_argument('out', help='*.pth; the hash is put into the name')
    parser.add_argument('--raw', action='store_true',
                        help='of a run with a moving average publish the weights as trained')
    parser.add_argument('--half', action='store_true', help='store floating point weights as fp16')
    add_overwrite(parser)
    args = parser.parse_args(argv)
    if not args.out.endswith('.pth'):
        parser.error(f'out {args.out} must end in .pth')
    if not Path(args.checkpoint).is_file():
        parser.error(f'checkpoint {args.checkpoint} does not exist')
    return args


def publish(checkpoint: str, out: str, raw: bool = False, half: bool = False,
            overwrite: bool = False) -> Path:
    """Write the published form of ``checkpoint``; returns its path with the hash in its name."""
    import torch

    from mmext.checkpoints.safe_reader import read_checkpoint
    from mmext.engine.run_state import not_finite
    content = read_checkpoint(checkpoint)
    if not isinstance(content, dict) or 'state_dict' not in content:
        raise SystemExit(f'{checkpoint} is no checkpoint of a training run: it has no state_dict')
    state = content['state_dict']
    if raw:
        if 'ema_state_dict' not in content:
            raise SystemExit(f'--raw: {checkpoint} has no moving average, its weights are raw')
        # EMAHook swaps: the weights as trained sit under `module.`, beside the counter of steps
        state = {key[len('module.'):]: value for key, value in content['ema_state_dict'].items()
                 if key.startswith('module.')}
    state = {key: value.to(torch.float16) if half and value.is_floating_point() else value.clone()
             for key, value in state.items()}
    facts = {key: plain(value) for key, value in content.get('meta', {}).items() if key in FACTS}
    bad = list(not_finite(state))
    if bad:
        raise SystemExit(f'{checkpoint} is not published: {len(bad)} of its weights are not finite '
                         f'({", ".join(bad[:3])}{"; --half overflows" if half else ""})')
    Path(out).parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=Path(out).parent) as folder:
        written = Path(folder) / Path(out).name
        torch.save(dict(meta=facts, state_dict=state), written)
        new = written.read_bytes()
        digest = hashlib.sha256(new).hexdigest()[:8]
        final = Path(out).with_name(f'{Path(out).stem}-{digest}.pth')
        if not (final.is_file() and final.read_bytes() == new):  # a name is no proof
            check_outputs([final], overwrite, [checkpoint])
            written.replace(final)
    torch.load(final, map_location='cpu', weights_only=True)  # fails here rather than at a user's
    return final


def plain(value):
    """Python containers and numbers only, which weights_only reading allows everywhere."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [plain(item) for item in value]
    if hasattr(value, 'tolist'):
        return value.tolist()
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def main(argv=None) -> int:
    args = parse_args(argv)
    final = publish(args.checkpoint, args.out, args.raw, args.half, args.overwrite)
    print(f'{final}: {final.stat().st_size / 1e6:.1f} MB')
    return 0


if __name__ == '__main__':
    with one_clear_error():
        sys.exit(main())
