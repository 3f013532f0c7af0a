"""Token merging against a plain loop over tokens, and its official schedule."""

import pytest
import torch

from mmext.ops import (
    bipartite_soft_matching,
    merge_schedule,
    merge_tokens,
    scaled_r,
    track_tokens,
    unmerge_tokens,
)


def brute_force(x, metric, size, r, protected):
    """One sample, token by token: groups of original positions, merged x, merged sizes."""
    n = len(x)
    even, odd = list(range(0, n, 2)), list(range(1, n, 2))
    norm = metric / metric.norm(dim=-1, keepdim=True)
    best = {}
    for a in even:
        if a < protected:
            continue
        scores = [float(norm[a] @ norm[b]) for b in odd]
        j = max(range(len(odd)), key=scores.__getitem__)
        best[a] = (scores[j], odd[j])
    gone = sorted(best, key=lambda a: -best[a][0])[:min(r, (n - protected) // 2)]
    groups = [[a] for a in even if a not in gone]
    groups += [[b] + [a for a in gone if best[a][1] == b] for b in odd]
    merged = torch.stack([sum(x[t] * size[t] for t in g) / sum(size[t] for t in g) for g in groups])
    return groups, merged, torch.stack([sum(size[t] for t in g) for g in groups])


@pytest.mark.parametrize('n, r, protected', [(10, 3, 0), (11, 4, 1), (17, 100, 1), (8, 4, 0)])
def test_merge_equals_brute_force_over_two_layers(n, r, protected):
    g = torch.Generator(torch.get_default_device()).manual_seed(n)
    x = torch.randn(2, n, 6, generator=g, dtype=torch.float64)
    size = torch.ones(2, n, dtype=torch.float64)
    source = torch.arange(n).expand(2, n)
    truth = [(x[b], size[b], [[i] for i in range(n)]) for b in range(2)]
    for _ in range(2):
        metric = torch.randn(2, x.shape[1], 4, generator=g)
        matching = bipartite_soft_matching(metric, r, protected)
        x, size = merge_tokens(x, matching, size)
        source = track_tokens(source, matching)
        for b in range(2):
            tx, ts, held = truth[b]
            groups, tx, ts = brute_force(tx, metric[b], ts, r, protected)
            held = [sorted(i for t in group for i in held[t]) for group in groups]
            truth[b] = (tx, ts, held)
            torch.testing.assert_close(x[b], tx)
            torch.testing.assert_close(size[b], ts)
            for position, originals in enumerate(held):
                assert all(source[b, i] == position for i in originals)
            full = unmerge_tokens(x, source)
            assert full.shape == (2, n, 6)
            torch.testing.assert_close(full[b, held[-1][0]], tx[-1])
        assert (source[:, 0] == 0).all() or not protected
    assert (size.sum(1) == n).all()


def test_class_token_is_untouched():
    torch.manual_seed(0)
    x = torch.randn(1, 9, 4)
    x[:, 1:] = x[:, :1]  # everything would like to merge with it
    size = torch.ones(1, 9)
    matching = bipartite_soft_matching(x, 100, 1)
    y, size = merge_tokens(x * torch.arange(1., 10)[:, None], matching, size)
    assert y.shape[1] == 5 and size[0, 0] == 1
    torch.testing.assert_close(y[:, 0], x[:, 0])


def test_padding_adds_nothing_to_image_tokens():
    torch.manual_seed(0)
    metric, x = torch.randn(2, 12, 4), torch.randn(2, 12, 3)
    valid = torch.ones(2, 12, dtype=torch.bool)
    valid[1, 5:] = False
    x[~valid] = 1e3
    size = valid.float()
    matching = bipartite_soft_matching(metric, 6, 0, valid)
    y, size = merge_tokens(x, matching, size)
    assert (size.sum(1) == valid.sum(1)).all()
    assert y[1][size[1] > 0].abs().max() < 100


def test_scaled_r_and_schedules():
    assert scaled_r(13, 4096) == round(13 * 4096 / 196) == 272
    assert merge_schedule(8, 3) == [8, 8, 8]
    assert merge_schedule((8, -1), 5) == [16, 12, 8, 4, 0]  # decreasing, as the official parse_r
    assert merge_schedule([1, 2, 3], 3) == [1, 2, 3]
    for bad in (-1, 4.5, '8', [1, 2, 3, 4], [1, -2, 3], [1, 2.5, 3], (4.5, 0), (8, -2)):
        with pytest.raises(ValueError, match='merging'):
            merge_schedule(bad, 3)
    assert bipartite_soft_matching(torch.randn(1, 4, 2), 0) is None


def test_fp16_sums_do_not_overflow():
    x = torch.full((1, 4, 2), 300.0, dtype=torch.float16)
    matching = bipartite_soft_matching(torch.ones(1, 4, 2), 2)
    y, size = merge_tokens(x, matching, torch.full((1, 4), 1000.0))
    assert y.dtype == torch.float16 and (y == 300).all() and size.sum() == 4000
