# Everything runs from .venv, which is made from requirements.lock the first time it is needed.

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.complete
COMPILE := uv pip compile --no-config --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--no-annotate --custom-compile-command "make lock" --quiet
COMPILE_IMAGE := $(COMPILE) --constraint requirements.lock

.PHONY: venv demo test check bench study faults soak fuzz audit peers protos lock clean
.DEFAULT_GOAL := venv

venv: $(STAMP)

$(STAMP): requirements.lock setup.cfg pyproject.toml
	@.ci/make-venv $(PYTHON)
	@touch $@

demo: venv
	@$(BIN)/skylane demo

# Two files of tests at a time, as half of them wait for something; make test JOBS=0 runs all in one process.
JOBS ?= 2
test: venv
	@.ci/install-real-parts
	-@.ci/install-torch
	@$(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile --no-loadscope-reorder

check: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: venv
	@$(BIN)/skylane bench overhead --isolate
	@$(BIN)/skylane bench overhead --codec raw
	@$(BIN)/skylane bench tensorflow
	@$(BIN)/skylane bench engines
	@$(BIN)/skylane bench saturation
	@$(BIN)/skylane bench failover
	@$(BIN)/skylane bench swap
	@$(BIN)/skylane bench tls
	@$(BIN)/skylane bench transports
	@$(BIN)/skylane bench transports --codec raw
	@$(BIN)/skylane bench doors
	@$(BIN)/skylane bench baselines
	@$(BIN)/skylane bench vehicle
	@$(BIN)/skylane bench stamping
	@$(BIN)/skylane bench report
	@$(BIN)/skylane bench clocks

# Five minutes: the formats of TensorFlow, two codecs, one vehicle and four.
study: venv
	@$(BIN)/skylane study run configs/studies/quick.yaml

# Every fault of docs/faults.md, done to real processes; less than 25 minutes.
faults: venv
	@.ci/install-real-parts
	@$(BIN)/skylane bench faults

# Random faults for half an hour, or as long as wanted: make soak MINUTES=240 SEED=7
MINUTES ?= 30
soak: venv
	@.ci/install-real-parts
	@$(BIN)/skylane bench soak --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

# Whatever comes from outside, made up by chance and by what the parsers do with it: make fuzz SECONDS=600
SECONDS ?= 120
fuzz: venv
	@$(BIN)/python -m tests.fuzz.run --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

# Skylane beside Triton, Ray Serve, BentoML, LitServe, MLServer and TorchServe; 11 GB of environments the first time.
peers: venv
	@$(BIN)/skylane bench peers --prepare
	@$(BIN)/skylane bench peers

# Known holes in what we depend on, and what each image is made of (build/sbom).
audit: venv
	@.ci/audit

# What gRPC's messages are made from: shared/protos/compiled.binpb out of the .proto files beside it.
protos: venv
	@cd shared/protos && ../../$(BIN)/python -m grpc_tools.protoc -I. \
		-I"$$(../../$(BIN)/python -c 'from importlib.resources import files; print(files("grpc_tools") / "_proto")')" \
		--include_imports --descriptor_set_out=compiled.binpb \
		skylane.proto tensorflow.proto tensorflow_serving.proto open_inference.proto

# Needs uv (pip install uv). The images take the versions that the tests ran with, and build Skylane with the setuptools of their
# lock.
lock:
	$(COMPILE) --extra edge --extra cloud --extra openvino --extra onnx --extra tflite --extra convert --extra broker \
		--extra gateway --extra transports --extra bench --extra dev setup.cfg -o requirements.lock
	echo 'setuptools>=77' | $(COMPILE_IMAGE) --extra edge --extra transports setup.cfg - -o edge/requirements.lock
	echo 'setuptools>=77' | $(COMPILE_IMAGE) --extra cloud --extra openvino --extra onnx --extra tflite --extra gateway \
		setup.cfg - -o cloud/requirements.lock
	echo 'setuptools>=77' | $(COMPILE_IMAGE) --extra gpu --extra gateway setup.cfg - -o cloud/requirements-gpu.lock
	printf 'pip-audit\ncyclonedx-bom\n' | $(COMPILE) - -o .ci/audit.lock

clean:
	rm -rf .venv runs build dist skylane.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache
