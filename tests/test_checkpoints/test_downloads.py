"""Downloads from a server on this machine: cached by URL, complete or not at all."""

import hashlib
import http.server
import io
import threading

import pytest
import torch
from mmengine.runner.checkpoint import load_checkpoint
from torch import nn

import mmext.registry  # noqa: F401  (replaces mmengine's readers)
from mmext.checkpoints.files import cached, fetch, read_state_dict
from mmext.checkpoints.safe_reader import UnreadableCheckpoint


def checkpoint(value):
    buffer = io.BytesIO()
    torch.save(dict(state_dict=nn.Linear(2, 1).state_dict() | {'bias': torch.tensor([value])}),
               buffer)
    return buffer.getvalue()


@pytest.fixture
def server(tmp_path, monkeypatch):
    """``files[path] = bytes`` are served; ``cut`` paths end early; ``asked`` counts."""
    monkeypatch.setattr(torch.hub, '_hub_dir', str(tmp_path / 'hub'))

    class Handler(http.server.BaseHTTPRequestHandler):
        files, cut, asked = {}, set(), []

        def do_GET(self):
            self.asked.append(self.path)
            data = self.files.get(self.path)
            self.send_response(404 if data is None else 200)
            self.send_header('Content-Length', str(len(data or b'')))
            self.end_headers()
            self.wfile.write((data or b'')[:len(data) // 2 if self.path in self.cut else None])

        def log_message(self, *args):
            pass

    running = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Handler)
    thread = threading.Thread(target=running.serve_forever)
    thread.start()
    Handler.url = f'http://127.0.0.1:{running.server_port}'
    yield Handler
    running.shutdown()
    thread.join()


def test_two_urls_of_one_name_give_two_files(server):
    server.files |= {'/a/x.pth': checkpoint(1.), '/b/x.pth': checkpoint(2.)}
    for folder, value in (('a', 1.), ('b', 2.), ('a', 1.)):
        assert read_state_dict(f'{server.url}/{folder}/x.pth')['bias'] == value
        model = nn.Linear(2, 1)
        load_checkpoint(model, f'{server.url}/{folder}/x.pth')  # mmengine's own way
        assert model.bias == value
    assert server.asked == ['/a/x.pth', '/b/x.pth']  # once each


@pytest.mark.parametrize('data, message', [
    (b'<!DOCTYPE html><html>log in</html>', 'gives a web page, not a checkpoint'),
    (b'\n<html>', 'gives a web page'), (b'not found', 'damaged'), (b'', 'damaged')])
def test_what_is_no_checkpoint_is_not_kept(server, data, message):
    url = f'{server.url}/x.pth'
    server.files['/x.pth'] = data
    with pytest.raises(UnreadableCheckpoint, match=message):
        fetch(url)
    server.files['/x.pth'] = checkpoint(3.)  # the server is mended
    assert read_state_dict(url)['bias'] == 3
    assert sorted(p.name for p in cached(url).parent.iterdir()) == ['.lock', 'x.pth']


def test_cut_downloads_are_not_kept(server):
    url = f'{server.url}/x.pth'
    server.files['/x.pth'] = checkpoint(1.)
    server.cut.add('/x.pth')
    with pytest.raises((UnreadableCheckpoint, OSError)):
        fetch(url)
    assert not cached(url).exists()
    server.cut.clear()
    assert read_state_dict(url)['bias'] == 1


def test_the_hash_in_the_name_is_verified(server):
    data = checkpoint(1.)
    name = f'x-{hashlib.sha256(data).hexdigest()[:8]}.pth'
    server.files[f'/{name}'] = checkpoint(2.)
    with pytest.raises(UnreadableCheckpoint, match='damaged or another file'):
        fetch(f'{server.url}/{name}')
    assert not cached(f'{server.url}/{name}').exists()
    # put into the hub folder by hand: no server is asked
    by_hand = cached('http://example.invalid/other.pth').parents[1] / name
    by_hand.write_bytes(data)
    assert read_state_dict(f'http://example.invalid/{name}')['bias'] == 1


def test_plain_http_without_a_hash_is_refused():
    with pytest.raises(ValueError, match=r'over plain http.*Use https'):
        fetch('http://example.invalid/x.pth')
    with pytest.raises(ValueError, match='only http'):
        fetch('ftp://example.invalid/x.pth')


def test_missing_files_name_the_status(server):
    with pytest.raises(OSError, match='404'):
        fetch(f'{server.url}/none.pth')
