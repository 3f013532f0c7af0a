"""Tables, figures and sentences of configs/evidence/README.md from the results of the runs."""

import json


def dumps(found: dict) -> str:
    """JSON with one line a key of the first level and one a point of the curve."""
    lines = []
    for key, value in found.items():
        if key in ('curve', 'tests') and value:
            items = value if isinstance(value, list) else [
                f'{json.dumps(k, ensure_ascii=False)}: {json.dumps(v)}' for k, v in value.items()]
            items = [item if isinstance(item, str) else json.dumps(item) for item in items]
            left, right = '[]' if isinstance(value, list) else '{}'
            text = f'{left}\n  ' + ',\n  '.join(items) + right
        else:
            text = json.dumps(value, ensure_ascii=False)
        lines.append(f' {json.dumps(key)}: {text}')
    return '{\n' + ',\n'.join(lines) + '\n}\n'


def write(experiments, root) -> None:
    pass
