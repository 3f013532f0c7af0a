"""What tools/analysis_tools/attention_maps.py draws and computes."""

from mmext.analysis.attention import column_mean, row_entropy, top_columns
from mmext.analysis.drawing import Cell, cell_grid, matrix_cell
from mmext.cli.analysis import (
    batches,
    check_results,
    chosen_heads,
    layers_of,
    make_dense,
    report,
    shown_layers,
    subjects,
    under,
    write_figure,
)

TENTH = 0.1


def panels(args, subject, images: dict) -> None:
    """Add this model's rows and numbers to ``images``, by name of the image."""
    layers = shown_layers(args, subject.backbone)
    for batch in batches(args, subject):
        for layer in layers_of(subject, batch.inputs, layers, ['attn']):
            attn = layer.tensors['attn']
            entropy, received = row_entropy(attn), column_mean(attn)
            top = (received * top_columns(received, TENTH)).sum(-1)
            for i, of_image in enumerate(attn):
                image = images.setdefault(
                    batch.names[layer.first + i],
                    {'image': under(layer, batch, subject, i), 'rows': {}, 'numbers': []})
                for head in chosen_heads(args, len(of_image), [0]):
                    matrix = of_image[head].float().cpu().numpy()
                    image['rows'].setdefault((subject.label, head), []).append(
                        matrix_cell(matrix, f'block {layer.index}', percentile=99.5))
                    image['numbers'].append({
                        'model': subject.label, 'layer': layer.index, 'head': head,
                        'tokens': matrix.shape[0], 'row_entropy_nats': entropy[i, head],
                        'mass_of_top_tenth_of_columns': top[i, head],
                        'most_attended_column': received[i, head].argmax()})


def run(args) -> None:
    check_results(args, 'attention_maps', of_images=['attention'])
    models, images, figures = subjects(args), {}, []
    for subject in models:
        if not args.pruned:
            make_dense(subject.backbone)
        panels(args, subject, images)
    for name, image in images.items():
        rows = [[Cell(image=image['image'], title=name), *row]
                for row in image['rows'].values()]
        labels = [f'{model}\nhead {head}' if len(models) > 1 else f'head {head}'
                  for model, head in image['rows']]
        figure = cell_grid(rows, labels, f'Attention, {models[0].label}' if len(models) == 1
                           else 'Attention', 'attention weight')
        figures.append(write_figure(args, models, figure, f'attention_{name}'))
    report(args, 'attention_maps', models,
           {'images': {name: image['numbers'] for name, image in images.items()}}, figures)
