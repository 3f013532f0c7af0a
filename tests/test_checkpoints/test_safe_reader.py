"""Damaged files are refused, wherever the damage is; pickles hold data alone."""

import collections
import hashlib
import os
import pickle
import random
import warnings

import numpy as np
import pytest
import torch
from mmengine.fileio import dump, load
from mmengine.runner.checkpoint import load_checkpoint
from safetensors.torch import save_file

import mmext.registry  # noqa: F401  (replaces mmengine's readers)
from mmext.checkpoints.safe_reader import UnreadableCheckpoint, read_checkpoint

STATE = {'weight': torch.arange(300.).reshape(20, 15), 'bias': torch.linspace(0, 1, 20)}


@pytest.fixture(autouse=True)
def untrusted(monkeypatch):
    monkeypatch.delenv('TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD', raising=False)
    monkeypatch.setenv('TORCH_FORCE_WEIGHTS_ONLY_LOAD', '')


def write(path, kind='zip', state=STATE):
    if kind == 'safetensors':
        save_file(state, path)
    else:
        torch.save(dict(state_dict=state, meta=dict(iter=3)), path,
                   _use_new_zipfile_serialization=kind == 'zip')
    return path


def same(content):
    state = content.get('state_dict', content)
    return set(state) == set(STATE) and all(torch.equal(state[k], STATE[k]) for k in STATE)


def flip(data: bytes, bit: int) -> bytes:
    out = bytearray(data)
    out[bit // 8] ^= 1 << bit % 8
    return bytes(out)


def test_a_flipped_bit_of_a_weight_is_noticed(tmp_path):
    path = write(tmp_path / 'a.pth')
    data = path.read_bytes()
    path.write_bytes(flip(data, 8 * data.index(STATE['weight'].numpy().tobytes()) + 777))
    assert not same(torch.load(path, weights_only=True))  # torch itself does not
    for read in (read_checkpoint, lambda path: load_checkpoint(torch.nn.Linear(15, 20), path)):
        with pytest.raises(UnreadableCheckpoint, match=r'a\.pth is damaged: the checksum of .*'):
            read(str(path))


@pytest.mark.parametrize('kind', ['zip', 'legacy', 'safetensors'])
def test_cut_or_longer_files_are_refused(tmp_path, kind):
    path = tmp_path / ('a.safetensors' if kind == 'safetensors' else 'a.pth')
    data = write(path, kind).read_bytes()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter('always')
        assert same(read_checkpoint(str(path)))
    assert any('no checksum' in str(one.message) for one in said) == (kind != 'zip')
    for wrong in (data[:-1], data[:len(data) // 2], data[:100], b'', data + b'x'):
        if kind == 'zip' and wrong == data + b'x':
            continue  # a zip is read from its end; what stands there is looked at by torch
        path.write_bytes(wrong)
        with pytest.raises(UnreadableCheckpoint):
            read_checkpoint(str(path))


@pytest.mark.parametrize('kind', ['zip', 'legacy', 'safetensors'])
def test_the_hash_in_a_name_is_verified(tmp_path, kind):
    suffix = '.safetensors' if kind == 'safetensors' else '.pth'
    data = write(tmp_path / f'a{suffix}', kind).read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    path = tmp_path / f'a_20230101-{digest[:8]}{suffix}'
    path.write_bytes(data)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        assert same(read_checkpoint(str(path)))
    weight = data.index(STATE['weight'].numpy().tobytes())
    path.write_bytes(flip(data, 8 * weight + 100))
    with pytest.raises(UnreadableCheckpoint, match=f'promises SHA-256 {digest[:8]}.*rename'):
        read_checkpoint(str(path))


@pytest.mark.parametrize('name', ['run-20230101.pth', 'run-00012345.pth', 'run-abc.pth',
                                  'mask-rcnn_8xb2-decade.pth', 'model-latest.pth'])
def test_dates_and_words_are_no_hashes(tmp_path, name):
    assert same(read_checkpoint(str(write(tmp_path / name))))


def test_pickles_of_results_hold_data_alone(tmp_path):
    content = [dict(
        scores=torch.rand(3), boxes=np.arange(12.).reshape(3, 4), label=np.int64(3),
        half=torch.ones(2, dtype=torch.bfloat16), shape=(3, 4), size=torch.Size([2]),
        masks=[dict(size=[4, 5], counts=b'abc')], order=collections.OrderedDict(a={1, 2}))]
    for protocol in (2, 4, 5):
        dump(content, tmp_path / 'results.pkl', protocol=protocol)
        found = load(tmp_path / 'results.pkl')[0]
        assert torch.equal(found['scores'], content[0]['scores'])
        assert np.array_equal(found['boxes'], content[0]['boxes']) and found['label'] == 3
        assert found['half'].dtype is torch.bfloat16 and found['order']['a'] == {1, 2}
        assert found['masks'] == content[0]['masks'] and found['size'] == torch.Size([2])


WITHOUT_CHECKSUM = pytest.mark.parametrize('kind', ['legacy', 'safetensors'])


def flipped(folder, kind, dtype, bit, place=1234):
    """File of weights like a network's, one bit of one of them flipped."""
    weights = 0.02 * torch.randn(4000, generator=torch.Generator().manual_seed(0))
    state = {'layer.weight': weights.to(dtype)}
    path = write(folder / ('a.safetensors' if kind == 'safetensors' else 'a.pth'), kind, state)
    data, values = path.read_bytes(), state['layer.weight'].view(torch.uint8).numpy()
    start = data.index(values.tobytes()) + place * values.nbytes // 4000
    path.write_bytes(flip(data, 8 * start + bit))
    return path


@WITHOUT_CHECKSUM
@pytest.mark.parametrize('dtype, bit', [
    (torch.float32, 30), (torch.bfloat16, 14), (torch.float64, 62)])
@pytest.mark.parametrize('place', [0, 77, 3999])
def test_a_weight_that_cannot_be_one_is_refused(tmp_path, kind, dtype, bit, place):
    path = flipped(tmp_path, kind, dtype, bit, place)
    with pytest.raises(UnreadableCheckpoint, match=r'layer\.weight holds .*e\+.*in 1 of 4000 '):
        read_checkpoint(str(path))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:8]
    named = path.rename(path.with_name(f'a-f{digest}{path.suffix}'))  # a wrong hash is none
    with pytest.raises(UnreadableCheckpoint, match='promises'):
        read_checkpoint(str(named))
    if any(digit in digest for digit in 'abcdef'):
        read_checkpoint(str(named.rename(path.with_name(f'a-{digest}{path.suffix}'))))


@WITHOUT_CHECKSUM
def test_a_small_change_is_warned_about_alone(tmp_path, kind):
    with pytest.warns(UserWarning, match='no checksum'):
        read_checkpoint(str(flipped(tmp_path, kind, torch.float32, 20)))


@WITHOUT_CHECKSUM
def test_large_values_that_are_meant(tmp_path, kind):
    """Masks of -inf or the lowest number, a best loss, a run that diverged: not one odd weight."""
    state = {'mask': torch.full((20, 20), -torch.inf).triu(1), 'best': torch.tensor(torch.inf),
             'lowest': torch.full((9, 9), torch.finfo(torch.float32).min).tril(),
             'diverged': torch.full((50,), torch.nan), 'steps': torch.full((9,), 2**40),
             'scale': torch.tensor([65536. ** 2, 1.]), 'empty': torch.zeros(0)}
    path = write(tmp_path / ('a.safetensors' if kind == 'safetensors' else 'a.pth'), kind, state)
    with pytest.warns(UserWarning, match='no checksum'):
        content = read_checkpoint(str(path))
    found = content.get('state_dict', content)
    assert all(torch.equal(found[key].nan_to_num(7), state[key].nan_to_num(7)) for key in state)


class Attack:

    def __init__(self, call, argument):
        self.call, self.argument = call, argument

    def __reduce__(self):
        return self.call, (self.argument,)


@pytest.mark.parametrize('hide', [
    lambda attack: attack, lambda attack: [dict(scores=attack)],
    lambda attack: np.array([attack], dtype=object),
    lambda attack: Attack(torch.storage._load_from_bytes, pickle.dumps(attack))])
def test_pickles_with_code_are_refused(tmp_path, monkeypatch, hide):
    trap, path = tmp_path / 'executed', tmp_path / 'results.pkl'
    path.write_bytes(pickle.dumps(hide(Attack(os.mkdir, str(trap)))))
    with pytest.raises(UnreadableCheckpoint):
        load(str(path))
    assert not trap.exists()
    monkeypatch.setenv('TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD', '1')
    if 'function <lambda>' in str(hide):
        with open(path, 'rb') as file:
            try:
                pickle.load(file)
            except Exception:  # torch's own refusal inside
                return
    assert trap.exists()  # the file really is an attack


@pytest.mark.slow
@pytest.mark.parametrize('kind, places', [('zip', 1200), ('legacy', 400), ('safetensors', 400)])
def test_fuzz_flipped_bits_and_cuts(tmp_path, kind, places, capsys):
    """Counts for docs/contributing.md: refused, equal in spite of it, different in silence."""
    rng = random.Random(0)
    suffix = '.safetensors' if kind == 'safetensors' else '.pth'
    data = write(tmp_path / f'a{suffix}', kind).read_bytes()
    for hashed in (False, True):
        digest = hashlib.sha256(data).hexdigest()[:8]
        counts = collections.Counter()
        for number in range(places):
            wrong = flip(data, rng.randrange(8 * len(data))) if number % 5 else (
                data[:rng.randrange(len(data))])
            path = tmp_path / (f'{number}-{digest}{suffix}' if hashed else f'{number}{suffix}')
            path.write_bytes(wrong)
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter('always')
                try:
                    equal = same(read_checkpoint(str(path)))
                    warned = any('no checksum' in str(one.message) for one in said)
                    counts['equal' if equal else 'different, warned' if warned else
                           'different in silence'] += 1
                except UnreadableCheckpoint:
                    counts['refused'] += 1
            path.unlink()
        with capsys.disabled():
            print(f'\n{kind}, hash in the name: {hashed}: {dict(counts)}')
        assert counts['different in silence'] == 0
        assert not hashed or counts['refused'] == places
        assert kind != 'zip' or counts['different, warned'] == 0
