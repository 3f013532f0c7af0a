#!/usr/bin/env bash
# From a machine with Python >= 3.10 to a trained, evaluated and drawn detector:
# installs the project (once), makes a data set of handwritten digits from scikit-learn's, trains
# the backbone as a classifier, then Mask R-CNN from it. Some minutes on 2 CPU cores, without the
# installation: how many is said at the start. An interrupted call goes on where it stopped.
#
# Usage: bash tools/dev/quickstart.sh [--fresh]
#   --fresh   train again, although the results are there
set -euo pipefail

usage() { sed -n '2,/^set/{s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; }

fresh=
for argument in "$@"; do
    case $argument in
        --fresh) fresh=1 ;;
        -h | --help) usage && exit ;;
        *) echo "error: unknown argument $argument" >&2 && usage >&2 && exit 2 ;;
    esac
done

source "$(dirname "${BASH_SOURCE[0]}")/env.sh"
ensure_env
cd "$ROOT"

cls=work_dirs/digits_cls
det=work_dirs/digits_mask_rcnn_short
if [ -n "$fresh" ]; then rm -rf "$cls" "$det"; fi
trap '[ $? = 0 ] || echo "quickstart did not finish; the same call goes on where it stopped" >&2' EXIT

# More threads than this only get in each other's way on maps of 32 x 32.
cores=$("$PYTHON" -c 'import os; print(min(4, len(os.sched_getaffinity(0))))')
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$cores}"

# Prints the final checkpoint of a finished run, nothing for any other.
final_checkpoint() {
    "$PYTHON" - "$1" <<'PY'
import json, pathlib, sys
folder = pathlib.Path(sys.argv[1])
try:
    run = json.loads((folder / 'metrics.json').read_text())
except (OSError, ValueError):
    sys.exit()
if run.get('finished') and (folder / str(run.get('checkpoint'))).is_file():
    print(folder / run['checkpoint'])
PY
}

# train NAME FOLDER CONFIG [OPTION ...]
train() {
    local name=$1 folder=$2 config=$3
    shift 3
    if [ -n "$(final_checkpoint "$folder")" ]; then
        echo "$name: trained already, see $folder (--fresh trains again)"
        return
    fi
    run "$PYTHON" tools/train.py "$config" --work-dir "$folder" --resume "$@"
    [ -n "$(final_checkpoint "$folder")" ] || fail "$name: no finished run in $folder"
}

minutes() { printf '%d.%d' $(($1 / 60)) $(($1 % 60 / 6)); }

# left PARTS_TO_GO: what remains, by what was estimated and how right that was so far
left() {
    local went=$((SECONDS - started)) expected=0 rest=0 part
    for part in 0 1 2; do
        if [ "$part" -ge "$1" ]; then rest=$((rest + estimate[part]))
        else expected=$((expected + estimate[part])); fi
    done
    if [ $expected -gt 20 ]; then rest=$((rest * (went + 1) / expected)); fi
    echo "   $(minutes $went) minutes so far, about $(minutes $rest) to go"
}

# expect PART FOLDER: nothing is to be done where a training has finished
expect() {
    if [ -n "$(final_checkpoint "$2")" ]; then estimate[$1]=0; fi
}

read -r -a estimate < <("$PYTHON" tools/dev/quickstart_time.py)
expect 1 "$cls"
expect 2 "$det"
cat <<END
What will be done, in about $(minutes $((estimate[0] + estimate[1] + estimate[2]))) minutes \
by a probe of this machine ($OMP_NUM_THREADS threads):
  1/3 data         4,314 single digits and 2,560 canvases      about $(minutes ${estimate[0]}) minutes
  2/3 classifier   pre-trains the backbone on single digits   about $(minutes ${estimate[1]}) minutes
  3/3 detector     Mask R-CNN from this backbone              about $(minutes ${estimate[2]}) minutes
END
started=$SECONDS
echo "== 1/3 data: canvases of handwritten digits"
run "$PYTHON" tools/dataset_converters/digits.py --out data/digits --overwrite
left 1
echo "== 2/3 classifier: pre-trains the backbone on single digits"
train classifier "$cls" configs/quickstart/digits_cls.py
left 2
echo "== 3/3 detector: Mask R-CNN from this backbone"
train detector "$det" configs/quickstart/digits_mask_rcnn_short.py \
    --cfg-options "model.backbone.init_cfg.checkpoint=$(final_checkpoint "$cls")"

"$PYTHON" - "$cls" "$det" $((SECONDS - started)) <<'PY'
import json, pathlib, sys
cls, det = (pathlib.Path(name).resolve() for name in sys.argv[1:3])
read = lambda folder: json.loads((folder / 'metrics.json').read_text())
top1 = read(cls)['metrics']['accuracy/top1']
run = read(det)
print(f'''
Done in {int(sys.argv[3]) / 60:.1f} minutes. On digits never seen in training:
  classifier  top-1 {top1:.1f} %
  detector    bbox mAP {run['metrics']['coco/bbox_mAP']:.3f}, segm mAP {run['metrics']['coco/segm_mAP']:.3f}
Files:
  checkpoint   {det / run['checkpoint']}
  metrics      {det / 'metrics.json'}
  curves       {det / 'curves.png'}
  predictions  {det / 'predictions.png'}''')
PY
