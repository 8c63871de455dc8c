#!/usr/bin/env bash
# Trains the embedded LongCat-Image on one H200, in commands of at most ten minutes:
#   training/run_on_gpu.sh 1    VAE 150 s, text encoder 30 s, transformer 230 s
#   training/run_on_gpu.sh 2    transformer 390 s, evaluation about 110 s
#   training/run_on_gpu.sh all  both in one go, about 17 minutes, where a command may take so long
#   training/run_on_gpu.sh 3    edit, 770 s in all, at most 550 s a command: again until it says that it is finished;
#                               begins from $RUN/longcat-image, or goes on from $RUN/models
#   training/run_on_gpu.sh 4    turbo 420 s, evaluation of all three about 120 s
#   training/run_on_gpu.sh smoke-edits    the stages of parts 3 and 4, tiny, on the CPU, after smoke (2 min)
#   training/run_on_gpu.sh smoke    every stage, tiny, on the CPU (45 s of CPU time)
# What a part needs beside (imports, the VAE's checks, packing) is about 50 s in part 1 and 25 s in part 2.
# PARTS="230 390" are the transformer's seconds in its two parts, VAE_SECONDS and TEXT_SECONDS those of the
# others: give every part the same ones, the schedule is planned over the sum.
# DEVICE=cuda RUN=/tmp/rehearsed training/run_on_gpu.sh smoke runs the tiny stages on the card: a minute well spent.
# States stay in $RUN between commands. What is worth keeping goes to $OUT, also where a stage fails: at most 6 files a part,
# each under 15 MB. TRAIN_FLAGS adds flags to every stage, for example --no-compile; FLOW_FLAGS to the transformer's
# alone, for example --rate 5e-4 or --batch 512.
# EDIT_SECONDS in all and EDIT_PART a command, TURBO_SECONDS and EDIT_SCENES do for parts 3 and 4 what PARTS and SCENES
# do for the others.
# JUDGE=no leaves the evaluations of parts 2 and 4 to another machine: training.evaluate and training.evaluate_edits.
# On a fresh machine, parts 3 and 4 need what came back unpacked into $RUN (longcat-image, or models), and nothing else.
# On a fresh machine after part 1: unpack what came back into a folder, and set BEGIN_FROM to its longcat-image.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
RUN=${RUN:-build/training}
OUT=${OUT:-build/training-out}
SCENES=${SCENES:-120000}
VAE_SECONDS=${VAE_SECONDS:-150}
TEXT_SECONDS=${TEXT_SECONDS:-30}
read -r -a PARTS <<<"${PARTS:-230 390}"
EDIT_SECONDS=${EDIT_SECONDS:-770}
EDIT_PART=${EDIT_PART:-550}
TURBO_SECONDS=${TURBO_SECONDS:-420}
EDIT_SCENES=${EDIT_SCENES:-60000}
JUDGE=${JUDGE:-yes}
WHAT=longcat-image
TRANSFORMER_SECONDS=$((PARTS[0] + PARTS[1]))
export PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=true HF_HUB_OFFLINE=1

stage() {
	echo "== $* [$SECONDS s]"
	"$PYTHON" -m training.train --run "$RUN" --resume "$@" ${TRAIN_FLAGS:-}
}

transformer() { # seconds of this run
	stage --stage transformer --seconds "$1" --total-seconds "$TRANSFORMER_SECONDS" --scenes "$SCENES" \
		${BEGIN_FROM:+--begin-from "$BEGIN_FROM"} ${FLOW_FLAGS:-}
}

evaluation_of_models() { # flags of both evaluations, then -- and those of drawing alone
	[ "$JUDGE" = yes ] || return 0
	local output=$RUN/evaluation-of-models edits=(--output "$RUN/evaluation-of-models")
	while [ "${1:---}" != -- ]; do
		edits+=("$1")
		shift
	done
	echo "== evaluation of models [$SECONDS s]"
	"$PYTHON" -m training.evaluate_edits --checkpoint "$RUN/models/longcat-image-edit" "${edits[@]}"
	"$PYTHON" -m training.evaluate_edits --checkpoint "$RUN/models/longcat-image-edit-turbo" "${edits[@]}"
	"$PYTHON" -m training.evaluate --checkpoint "$RUN/models/longcat-image" --output "$output" "${@:2}"
	tar -C "$RUN" -czf "$OUT/evaluation-of-models.tar.gz" evaluation-of-models
}

evaluation() {
	[ "$JUDGE" = yes ] || return 0
	echo "== evaluation [$SECONDS s]"
	"$PYTHON" -m training.evaluate --checkpoint "$RUN/longcat-image" --guidance 1 2.5 4.5 --output "$RUN/evaluation"
	tar -C "$RUN" -czf "$OUT/evaluation.tar.gz" evaluation
}

keep() { # whatever there is: it runs after a failure too
	[ ! -d "$RUN/curves" ] || tar -C "$RUN" -czf "$OUT/curves.tar.gz" curves
	rm -f "$OUT/$WHAT".tar.gz.*
	[ ! -d "$RUN/$WHAT" ] || tar -C "$RUN" -czf - "$WHAT" | split -b 14m - "$OUT/$WHAT.tar.gz."
	echo "== kept in $OUT [$SECONDS s]"
	ls -l "$OUT"
}

finish() { # what still runs in the background would hold the pipe, and with it the command
	jobs -p | xargs -r kill 2>/dev/null || true
	keep
}

part() {
	case $1 in
	1)
		stage --stage data --seconds 600 --scenes "$SCENES" &
		[ -d "$RUN/parts/vae" ] || stage --stage vae --seconds "$VAE_SECONDS" --scenes 60000
		wait $! || echo "== the next stage draws its data itself [$SECONDS s]"
		stage --stage text --seconds "$TEXT_SECONDS" --scenes 40000
		transformer "${PARTS[0]}"
		;;
	2)
		transformer "${PARTS[1]}"
		keep
		evaluation
		;;
	3)
		WHAT=models
		stage --stage edit --seconds "$EDIT_PART" --total-seconds "$EDIT_SECONDS" --scenes "$EDIT_SCENES"
		;;
	4)
		WHAT=models
		stage --stage turbo --seconds "$TURBO_SECONDS" --scenes "$EDIT_SCENES"
		evaluation_of_models
		;;
	all)
		part 1
		part 2
		;;
	smoke-edits)
		WHAT=models
		small=(--geometry smoke --scenes 64 --workers 1 --device cpu --seconds 60)
		stage --stage edit --steps 4 --batch 4 "${small[@]}"
		stage --stage turbo --steps 16 --batch 2 "${small[@]}"
		evaluation_of_models --device cpu --edits 2 -- --device cpu --prompts 2 --renders 4 --steps 4
		;;
	smoke)
		small=(--geometry smoke --scenes 64 --workers 1 --device "${DEVICE:-cpu}" --seconds 60)
		stage --stage data "${small[@]}"
		stage --stage vae --steps 4 --batch 4 "${small[@]}"
		stage --stage text --steps 4 --batch 16 "${small[@]}"
		stage --stage transformer --steps 4 --batch 8 "${small[@]}"
		"$PYTHON" -m training.evaluate --checkpoint "$RUN/longcat-image" --device "${DEVICE:-cpu}" --prompts 2 --renders 4 --steps 4 \
			--output "$RUN/evaluation"
		;;
	esac
}

case ${1:-} in
all | 1 | 2 | 3 | 4 | smoke | smoke-edits) ;;
*)
	echo "usage: $0 all|1|2|3|4|smoke|smoke-edits   (what each does stands at the top of this file)" >&2
	exit 2
	;;
esac
if [ "${#PARTS[@]}" -ne 2 ]; then
	echo "PARTS=\"${PARTS[*]}\": two numbers are needed, the transformer's seconds in parts 1 and 2" >&2
	exit 2
fi
if [ "$JUDGE" != yes ] && [ "$JUDGE" != no ]; then
	echo "JUDGE=$JUDGE: yes or no; no leaves the evaluations of parts 2 and 4 to another machine" >&2
	exit 2
fi
mkdir -p "$OUT"
{
	trap finish EXIT
	part "$@"
} 2>&1 | tee "$OUT/log-$1.txt"
