"""Coding rate of every layer of a token-statistics backbone (Fig. 5 of the DMST paper).

Variational rate R_c^var(Z | pi_k, U_k^S) and the exact log-determinant rate with the same
memberships, per image, then mean and spread over the images; several models in one figure. The
defaults (tokens normalized per head, eps^2 = 0.01) are those of ToST's published curve: the ceiling
is 0.5 P ln(101), 110.76 nats for P = 48.

Beside them stands MCR2 itself, R(Z), R^c(Z, Pi) and their difference, of the normed tokens at unit
length (as they are with --normalize none).

--site says where tokens are taken. The paper measures "the output Z after the DMSA block"; DMSA
being the attention operator, that is read here as behind the attention's residual and before the
MLP (the default, our reading). 'block' is behind the MLP, 'input' where the layer itself looks, as
ToST's and CRATE's code do. At each site tokens go through the block's first norm and have their own
memberships and gates.

Example:
    python tools/analysis_tools/coding_rate.py DMST.py a.pth --compare TOST.py=b.pth
"""

from mmext.cli.arguments import analysis_parser
from mmext.cli.clear_errors import one_clear_error


def main(argv=None):
    command = analysis_parser(__doc__, num_images=1000, compare=True, heads=False)
    command.add_argument('--eps2', type=float, default=0.01, help='squared distortion')
    command.add_argument('--normalize', choices=['head', 'token', 'none'], default='head',
                         help='tokens to unit length per head, over all heads, or not')
    command.add_argument('--site', choices=['input', 'attention', 'block'], default='attention',
                         help='of the block: its input, behind the attention, behind the MLP '
                         '(default: attention)')
    command.add_argument('--full-subspace', action='store_true',
                         help='leave the gate out: rates within S instead of U^S')
    args = command.parse_args(argv)
    # after parsing, so that --help and typing errors answer at once
    from mmext.cli.figures.coding_rate import run
    run(args)


if __name__ == '__main__':
    with one_clear_error():
        main()
