# Everything runs from .venv. `make venv` installs requirements.lock: the demo and ordinary use. `make dev` adds the rest of
# requirements-dev.lock: the other engines, the converters, the benches' and the tests' tools.

PYTHON ?= python3
BIN := .venv/bin
VENV := .venv/.complete
DEV := .venv/.complete-dev
COMPILE := uv pip compile --no-config --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--no-annotate --custom-compile-command "make lock" --quiet
COMPILE_PART := $(COMPILE) --constraint requirements-dev.lock

.PHONY: venv dev demo view batch-demo test check docs docs-reference results results-noscope freshness bench bench-rounds fleet study faults soak fuzz audit peers protos wheel lock clean
.DEFAULT_GOAL := venv

venv: $(VENV)

$(VENV): requirements.lock setup.cfg setup.py pyproject.toml
	@.ci/make-venv $(PYTHON)
	@touch $@

dev: $(DEV)

$(DEV): requirements-dev.lock $(VENV)
	@.ci/install-dev
	@touch $@

demo: venv
	@$(BIN)/skylane demo

# The demo's drive live in Rerun, a page in the browser, until Ctrl-C; installs Rerun and Foxglove's library (0.7 GB) first.
view: venv
	@$(BIN)/python -c 'import rerun, foxglove' 2>/dev/null || $(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--require-hashes -r .ci/view.lock
	@$(BIN)/skylane demo --view rerun

# The same drive in four weathers as a small library, its masks and its table of label shares, in build/batch-demo; half a minute on two cores.
BATCH := build/batch-demo
DRIVES := dry/clear dry/dusk wet/fog wet/rain
batch-demo: venv
	@set -e; for drive in $(DRIVES); do test -e $(BATCH)/library/$$drive.mcap || $(BIN)/skylane bag make \
		$(BATCH)/library/$$drive.mcap --weather $${drive#*/} --seed 2026 --frames 20; done
	@cp -p $(BATCH)/library/wet/rain.mcap $(BATCH)/library/wet/rain_copy.mcap
	@$(BIN)/skylane batch $(BATCH)/library --model road-small --models models --out $(BATCH)/out --pictures 10
	@$(BIN)/python examples/label_shares/label_shares.py $(BATCH)/out
	@find $(BATCH)/out/bags -name '*.jpg' | sort

# Three files of tests at a time, as most of them wait for something; make test JOBS=0 runs all in one process. If a test ends its process,
# because it hangs for example, the other processes do the rest: a new one would begin with the same test.
JOBS ?= 3
test: dev
	@.ci/install-real-parts
	-@.ci/install-torch
	@$(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile --no-loadscope-reorder --max-worker-restart 0

check: dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The documentation site in build/docs; a broken link or any other warning ends the build.
docs: dev
	@$(BIN)/python -m sphinx -W --keep-going -q -c docs -b html . build/docs
	@echo build/docs/index.html

# The pages of the command line and of the configuration keys, from the code.
docs-reference: dev
	@PYTHONPATH=. $(BIN)/python docs/generate_reference.py

# The measurements of docs/results/index.md, about ten minutes on two cores; needs Mosquitto and Chromium.
RESULTS := build/results
results: dev
	@.ci/install-real-parts
	@rm -rf $(RESULTS) && mkdir -p $(RESULTS)
	$(BIN)/python -m bench overhead --rounds 4 --frames 15 --json $(RESULTS)/overhead.json
	$(BIN)/skylane study run configs/studies/transports.yaml --models models --seed 2026 --out $(RESULTS)/transports
	PYTHONPATH=. $(BIN)/python docs/transport_results.py $(RESULTS)/transports $(RESULTS)
	$(BIN)/python -m bench baselines --rounds 2 --frames 10 --json $(RESULTS)/baselines.json
	$(BIN)/python -m bench saturation --models models --rounds 2 --seconds 10 --json $(RESULTS)/saturation.json
	$(BIN)/python -m bench gateway --models models --seconds 8 --rounds 3 --json $(RESULTS)/gateway.json
	$(BIN)/skylane study run docs/results/data/link.yaml --models models --seed 2026 --out $(RESULTS)/link
	$(BIN)/skylane report $(RESULTS)/link --json >$(RESULTS)/link.json
	cp $(RESULTS)/*.json docs/results/data/
	PYTHONPATH=. $(BIN)/python docs/generate_results.py

# Distributed NoScope on docs/results/index.md: more than an hour on two cores, most of it for the study.
NOSCOPE := build/noscope
results-noscope: dev
	@.ci/install-real-parts
	@rm -rf $(NOSCOPE) && mkdir -p $(NOSCOPE)
	@test -d models/car-reference || $(BIN)/skylane model build car-reference --models models
	$(BIN)/python -m bench baselines noscope --models models --json docs/results/data/noscope.json
	$(BIN)/skylane study run configs/studies/noscope.yaml --models models --out $(NOSCOPE)/study
	PYTHONPATH=. $(BIN)/python docs/noscope_results.py $(NOSCOPE)/study/runs.csv docs/results/data/noscope-study.json
	PYTHONPATH=. $(BIN)/python docs/generate_results.py

# How right the outputs of each presenter are, on docs/results/freshness.md: ten minutes on two idle cores, less with the drives
# of an earlier run in runs/freshness (3 GB).
freshness: dev
	$(BIN)/python -m bench freshness --live --models models --json docs/results/data/freshness.json
	PYTHONPATH=. $(BIN)/python docs/generate_results.py

bench: dev
	@$(BIN)/python -m bench overhead --isolate
	@$(BIN)/python -m bench overhead --codec raw
	@$(BIN)/python -m bench tensorflow
	@$(BIN)/python -m bench saturation
	@$(BIN)/python -m bench failover
	@$(BIN)/python -m bench tls
	@$(BIN)/python -m bench gateway
	@$(BIN)/python -m bench baselines
	@$(BIN)/python -m bench batch

# One round of every bench as a command of its own, with workers of TensorFlow; `make test` runs the benches in its own process.
bench-rounds: dev
	@.ci/install-real-parts
	@$(BIN)/python -m pytest -q -m bench_rounds tests/bench/test_smoke.py

# Dispatch by load against its targets, where each part saturates, and the formula of docs/guides/sizing.md; more than half an hour.
fleet: dev
	@.ci/install-real-parts
	@$(BIN)/python -m bench fleet --suite targets
	@$(BIN)/python -m bench fleet --suite sweep --rounds 1
	@$(BIN)/python -m bench fleet --suite formula --rounds 1

# Five minutes: the formats of TensorFlow, two codecs, one vehicle and four.
study: dev
	@$(BIN)/skylane study run configs/studies/quick.yaml

# Every fault of docs/guides/faults.md, done to real processes; less than 25 minutes. Some of them, with the seed of an earlier run:
# make faults ONLY="half-open 13" SEED=7. They have limits of their own, so that pytest's for a test that hangs is off.
faults: dev
	@.ci/install-real-parts
	@$(BIN)/python -m pytest -v -o faulthandler_timeout=0 -m faults tests/faults $(ONLY:%=--only=%) $(if $(SEED),--seed $(SEED))

# Random faults for half an hour, or as long as wanted: make soak MINUTES=240 SEED=7
MINUTES ?= 30
soak: dev
	@.ci/install-real-parts
	@$(BIN)/python -m tests.faults.soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

# Whatever comes from outside, made up by chance and by what the parsers do with it: make fuzz SECONDS=600
SECONDS ?= 120
fuzz: dev
	@$(BIN)/python -m tests.fuzz.run --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

# Skylane beside Triton, Ray Serve, BentoML, LitServe and MLServer; up to 11 GB of environments the first time.
peers: dev
	@$(BIN)/python -m bench peers --prepare
	@$(BIN)/python -m bench peers

# Known holes in what we depend on, and what each image is made of (build/sbom).
audit: dev
	@.ci/audit

# What gRPC's messages are made from: shared/protos/compiled.binpb out of the .proto files beside it.
protos: dev
	@cd shared/protos && ../../$(BIN)/python -m grpc_tools.protoc -I. \
		-I"$$(../../$(BIN)/python -c 'from importlib.resources import files; print(files("grpc_tools") / "_proto")')" \
		--include_imports --descriptor_set_out=compiled.binpb \
		skylane.proto tensorflow.proto tensorflow_serving.proto open_inference.proto

# dist/skylane-VERSION-py3-none-any.whl, which needs no checkout.
wheel: venv
	@.ci/make-wheel dist

# Needs uv (pip install uv). requirements-dev.lock is resolved first; every other lock takes its versions. The images build
# Skylane with the setuptools of their lock.
lock:
	$(COMPILE) --extra demo --extra openvino --extra local --extra convert --extra gateway --extra transports \
		--extra ray --extra resources --extra figures --extra view --extra metrics --extra otel --extra dev setup.cfg -o requirements-dev.lock
	$(COMPILE_PART) --extra demo --extra gateway --extra transports setup.cfg -o requirements.lock
	printf 'setuptools>=77\ncryptography>=42\n' | $(COMPILE_PART) --extra edge --extra local --extra transports \
		--extra metrics setup.cfg - -o edge/requirements.lock
	printf 'setuptools>=77\nrosbags>=0.11\n' | $(COMPILE_PART) --extra cloud --extra openvino --extra local --extra gateway \
		setup.cfg - -o cloud/requirements.lock
	printf 'setuptools>=77\nrosbags>=0.11\n' | $(COMPILE_PART) --extra gpu --extra gateway setup.cfg - -o cloud/requirements-gpu.lock
	printf 'foxglove-sdk>=0.30\nrerun-sdk>=0.41\n' | $(COMPILE_PART) - -o .ci/view.lock
	printf 'pip-audit\ncyclonedx-bom\n' | $(COMPILE_PART) - -o .ci/audit.lock

clean:
	rm -rf .venv runs build dist skylane.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache
