"""Measure how near the features of a ViT-S pruned without labels come to its dense ones.

One call makes one row: a way to start, the closeness of tokens on photos and other images that it
has not seen, and a k-nearest-neighbor classifier on the class token. docs/pruning.md shows the
table. Data: the folder of test data beside the checkout.

Example:
    python tools/dev/recovery.py recovered --data ../shared --threads 2
    python tools/dev/recovery.py page
"""

import argparse
import copy
import json
import resource
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / 'docs' / 'images'
ROWS = ('dense', 'random', 'calibrated', 'corrected', 'recovered', 'uniform', 'uniform-recovered',
        'chosen', 'chosen-recovered')
PHOTOS = ('astronaut.png', 'chelsea.png', 'coffee.png', 'motorcycle_left.png', 'rocket.jpg')
OTHERS = ('hubble_deep_field.jpg', 'retina.jpg', 'ihc.png', 'camera.png', 'coins.png', 'brick.png',
          'grass.png', 'gravel.png', 'moon.png')
NEIGHBORS = 20
PER_CLASS = {'train': 30, 'test': 20}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split('\n\n')[0])
    parser.add_argument('row', choices=(*ROWS, 'page'))
    parser.add_argument('--data', type=Path, default=ROOT.parent / 'shared')
    parser.add_argument('--out', type=Path, default=IMAGES / 'recovery.json')
    parser.add_argument('--work', type=Path, default=ROOT / 'work_dirs' / 'recovery',
                        help='where the weights of the rows are kept')
    parser.add_argument('--steps', type=int, default=100)
    parser.add_argument('--threads', type=int, default=2)
    parser.add_argument('--fit-only', action='store_true', help='leave measuring to another call')
    args = parser.parse_args()
    if args.row == 'page':
        rows = json.loads(args.out.read_text())
        print(table(rows))
        plot(rows, args.out.with_suffix('.png'))
        return

    import torch
    torch.set_num_threads(args.threads)
    found = json.loads(args.out.read_text()) if args.out.exists() else {}
    weights = args.work / f'{args.row}.pth'
    if not weights.exists():
        args.work.mkdir(parents=True, exist_ok=True)
        model, cost = fitted(args)
        torch.save(model.state_dict(), weights)
        found[args.row] = cost
        write(found, args.out)
    if args.fit_only:
        return
    import mmext
    model = dense_model(args.data)
    if args.row != 'dense':
        mmext.prune_attention(model, found[args.row].get('keep_ratio', (0.9, 0.1)))
    model.load_state_dict(torch.load(weights))
    found[args.row]['cosine'] = cosines(model, args.data, args.work / 'dense_tokens.pth')
    write(found, args.out)
    found[args.row]['knn'] = neighbors(model, args.data)
    write(found, args.out)


def write(found: dict, path: Path) -> None:
    rows = {row: found[row] for row in ROWS if row in found}
    path.write_text(json.dumps(rows, indent=1) + '\n')
    print(json.dumps(rows, indent=1))


def dense_model(data: Path):
    import timm
    from safetensors.torch import load_file
    model = timm.create_model('deit_small_patch16_224', num_classes=0).eval()
    weights = load_file(data / 'weights' / 'vit_small_patch16_224_pretrained.safetensors')
    model.load_state_dict({name: value.float() for name, value in weights.items()})
    return model


def fitted(args):
    """The model of a row, and what it cost."""
    import torch

    import mmext
    from mmext.recovery import correct, random_batches
    model = dense_model(args.data)
    if args.row == 'dense':
        return model, {}
    torch.manual_seed(0)
    uniform = args.row.startswith('uniform')
    mmext.prune_attention(model, keep_ratio=0.5 if uniform else (0.9, 0.1))
    if args.row == 'random':
        return model, {}
    photos = [read(path, short=320) for path in
              sorted((args.data / 'data' / 'coco_mini' / 'train2017').glob('*.jpg'))]
    squares = torch.stack([square(photo) for photo in photos])
    start, cost = time.time(), {'threads': args.threads}
    if uniform:
        cost['keep_ratio'] = 0.5
    if args.row not in ('recovered', 'uniform-recovered'):  # which calibrates itself
        mmext.calibrate_bias(model, squares)
    if args.row == 'corrected':
        generator = torch.Generator().manual_seed(0)
        teacher = copy.deepcopy(model)
        teacher.set_keep_ratio(None)
        correct(model, teacher, next(random_batches(photos, (224, 224), 128, 1, generator)))
    if args.row.startswith('chosen'):
        cost['keep_ratio'] = mmext.choose_keep_ratio(model, squares[::4])
    if args.row.endswith('recovered'):
        result = mmext.recover(model, photos, steps=args.steps)
        print(result)
        cost |= {'steps': args.steps, 'curve': [
            [step, round(now.patches, 4), round(now.prefix, 4)]
            for step, now in [(0, result.corrected), *result.curve]]}
    cost |= {'minutes': round((time.time() - start) / 60, 2),
             'peak_gb': round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2)}
    return model, cost


def tokens(model, paths: list[Path]):
    """(n, N, C) of the middle of every image."""
    import torch
    with torch.inference_mode():
        return torch.cat([model.forward_features(square(read(path))[None]) for path in paths])


def cosines(model, data: Path, known: Path) -> dict:
    """Mean cosine of class and patch tokens to the dense ones, by kind of image."""
    import skimage
    import torch
    import torch.nn.functional as F
    samples = Path(skimage.__file__).parent / 'data'
    kinds = {
        'COCO val': sorted((data / 'data' / 'coco_mini' / 'val2017').glob('*.jpg')),
        'scikit-image photos': [samples / name for name in PHOTOS],
        'scikit-image others': [samples / name for name in OTHERS],
        'CIFAR-10': cifar(data, 'test', 2)[0]}
    if not known.exists():
        dense = dense_model(data)
        torch.save({kind: tokens(dense, paths) for kind, paths in kinds.items()}, known)
    dense, out = torch.load(known), {}
    for kind, paths in kinds.items():
        found = F.cosine_similarity(tokens(model, paths), dense[kind], dim=-1)
        out[kind] = {'images': len(paths), 'class': round(found[:, 0].mean().item(), 4),
                     'patches': round(found[:, 1:].mean().item(), 4)}
    return out


def neighbors(model, data: Path) -> float:
    """Accuracy in percent of a k-nearest-neighbor classifier on the class token, CIFAR-10."""
    from sklearn.neighbors import KNeighborsClassifier
    (train, labels), (test, wanted) = (
        cifar(data, split, count) for split, count in PER_CLASS.items())
    classifier = KNeighborsClassifier(NEIGHBORS, metric='cosine').fit(
        tokens(model, train)[:, 0], labels)
    return round(100 * classifier.score(tokens(model, test)[:, 0], wanted), 1)


def cifar(data: Path, split: str, per_class: int) -> tuple[list[Path], list[str]]:
    """Images and the names of their classes."""
    paths = [path for folder in sorted((data / 'data' / 'cifar10_sample' / split).iterdir())
             for path in sorted(folder.glob('*.jpg'))[:per_class]]
    return paths, [path.parent.name for path in paths]


def read(path: Path, short: int | None = None):
    """(3, H, W), normalized; the shorter side resized where asked for."""
    import torch
    from PIL import Image
    from torchvision.transforms.v2 import functional as tv
    image = tv.pil_to_tensor(Image.open(path).convert('RGB'))
    if short:
        image = tv.resize(image, short, tv.InterpolationMode.BICUBIC, antialias=True)
    return tv.normalize(tv.to_dtype(image, torch.float32, scale=True),
                        [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])


def square(image):
    """(3, H, W) -> its middle as (3, 224, 224)."""
    from mmext.recovery import center_crop
    return center_crop(image, (224, 224))


def table(rows: dict) -> str:
    """Markdown; cosines are those of patch tokens / class token."""
    kinds = list(next(row['cosine'] for row in rows.values() if 'cosine' in row))
    lines = ['| | ' + ' | '.join(kinds) + ' | k-NN | minutes | peak memory |',
             '|---|' + '--:|' * (len(kinds) + 3)]
    for name, row in rows.items():
        cells = [f"{row['cosine'][kind]['patches']:.3f} / {row['cosine'][kind]['class']:.3f}"
                 for kind in kinds] if 'cosine' in row else ['' for _ in kinds]
        cells += [str(row.get('knn', '')), str(row.get('minutes', '')),
                  f"{row['peak_gb']} GB" if 'peak_gb' in row else '']
        lines.append(f'| {name} | ' + ' | '.join(cells) + ' |')
    return '\n'.join(lines)


def plot(rows: dict, path: Path) -> None:
    import matplotlib
    matplotlib.use('Agg')
    import matplotlib.pyplot as plt
    figure, axes = plt.subplots(figsize=(5.6, 3.4), layout='constrained')
    for row, color in (('recovered', 'C0'), ('chosen-recovered', 'C1')):
        steps, patches, prefix = zip(*rows[row]['curve'], strict=True)
        ratios = '.9→.1' if row == 'recovered' else 'chosen ratios'
        axes.plot(steps, patches, 'o-', color=color, label=f'{ratios}, patch tokens')
        axes.plot(steps, prefix, 's:', color=color, label=f'{ratios}, class token')
    axes.set(xlabel='steps of 8 crops', ylabel='cosine to the dense model',
             title='8 photos kept apart; at 0: after the correction')
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=120)
    print(path)


if __name__ == '__main__':
    main()
