"""The one way through a config: every dict in it, with its place."""

from collections.abc import Container, Iterator


def walk(node, path: str = '', only: Container[str] | None = None) -> Iterator[tuple[str, dict]]:
    """``(path, dict)`` for every dict below and including ``node``, parents first.

    A dict may be changed when it is handed out: its values are visited afterwards.

    Args:
        node: a config or any part of one; what is neither dict, list nor tuple holds nothing.
        path: of ``node``; below it come ``.key`` and ``[index]``, as in ``model.neck[0]``.
        only: keys to go into; None: all.
    """
    if isinstance(node, dict):
        yield path, node
        for key, value in list(node.items()):
            if only is None or key in only:
                yield from walk(value, f'{path}.{key}' if path else str(key), only)
    elif isinstance(node, (list, tuple)):
        for index, value in enumerate(node):
            yield from walk(value, f'{path}[{index}]', only)


def initial_weights(model, path: str = 'model') -> Iterator[tuple[str, dict, dict]]:
    """``(path, dict, init)``: each ``init`` of type 'Pretrained' in the ``init_cfg`` of a dict."""
    for where, node in walk(model, path):
        init = node.get('init_cfg')
        for one in init if isinstance(init, (list, tuple)) else [init]:
            if isinstance(one, dict) and one.get('type') == 'Pretrained':
                yield where, node, one
