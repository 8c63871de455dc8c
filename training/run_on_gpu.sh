#!/usr/bin/env bash
# Trains the embedded LongCat-Image on one H200, in commands of at most ten minutes:
#   training/run_on_gpu.sh 1    VAE 280 s, text encoder 55 s, transformer 165 s
#   training/run_on_gpu.sh 2    transformer 550 s
#   training/run_on_gpu.sh 3    transformer 250 s, evaluation about 90 s
#   training/run_on_gpu.sh smoke    every stage, tiny, on the CPU (45 s of CPU time)
# States stay in $RUN between commands. What is worth keeping goes to $OUT: at most 7 files, each under 15 MB.
# TRAIN_FLAGS adds flags to every stage, for example --no-compile.
# On a fresh machine after part 1 or 2: unpack what came back into a folder, and set BEGIN_FROM to its longcat-image.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
RUN=${RUN:-build/training}
OUT=${OUT:-build/training-out}
SCENES=${SCENES:-120000}
TRANSFORMER_SECONDS=965
export PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=true HF_HUB_OFFLINE=1
mkdir -p "$OUT"

stage() {
	echo "== $* [$SECONDS s]"
	"$PYTHON" -m training.train --run "$RUN" --resume "$@" ${TRAIN_FLAGS:-}
}

transformer() { # seconds of this run
	stage --stage transformer --seconds "$1" --total-seconds "$TRANSFORMER_SECONDS" --scenes "$SCENES" \
		${BEGIN_FROM:+--begin-from "$BEGIN_FROM"}
}

keep() {
	tar -C "$RUN" -czf "$OUT/curves.tar.gz" curves
	tar -C "$RUN" -czf - longcat-image | split -b 14m - "$OUT/longcat-image.tar.gz."
	echo "== kept in $OUT [$SECONDS s]"
	ls -l "$OUT"
}

{
	case ${1:-} in
	1)
		stage --stage vae --seconds 280 --scenes 60000
		stage --stage text --seconds 55 --scenes 40000
		transformer 165
		;;
	2) transformer 550 ;;
	3)
		transformer 250
		"$PYTHON" -m training.evaluate --checkpoint "$RUN/longcat-image" --guidance 2.5 7 4.5 --output "$RUN/evaluation"
		cp "$RUN"/evaluation/{guidance-4.5.json,guidance-4.5.png,summary.json} "$OUT/"
		;;
	smoke)
		small=(--geometry smoke --scenes 64 --workers 1 --device cpu --seconds 60)
		stage --stage vae --steps 4 --batch 4 "${small[@]}"
		stage --stage text --steps 4 --batch 16 "${small[@]}"
		stage --stage transformer --steps 4 --batch 8 "${small[@]}"
		"$PYTHON" -m training.evaluate --checkpoint "$RUN/longcat-image" --device cpu --prompts 2 --renders 4 --steps 4 \
			--output "$RUN/evaluation"
		;;
	*)
		echo "usage: $0 1|2|3|smoke" >&2
		exit 2
		;;
	esac
	keep
} 2>&1 | tee "$OUT/log-${1:-}.txt"
