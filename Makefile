# Everything a checkout does, on a fresh Debian 12 as well as on a control machine in use.
SHELL := /bin/bash
STEP := tools/step
export PATH := $(CURDIR)/.venv/bin:$(PATH)
DEMO := -i inventory/demo

.PHONY: setup wheelhouses image demo test lint check-flags check-flags-real bench-rolling faults-rolling bench-staging clean
.NOTPARALLEL:

setup: ## Install what the control machine lacks
	@$(STEP) "Set up the control machine" tools/setup

.cache/models/tiny-qwen3: demo/make_model.py
	@$(STEP) "Make the model" $< $@
	@touch $@

wheelhouses: setup .cache/models/tiny-qwen3
	@$(STEP) "Build the wheelhouse" ansible-playbook playbooks/wheelhouse.yml -e @demo/wheelhouse.yml
	@$(STEP) "Build the router's wheelhouse" ansible-playbook playbooks/wheelhouse.yml -e @demo/router_wheelhouse.yml

demo: wheelhouses ## Deploy onto a test host made here and let it complete a prompt
	@$(STEP) "Create the test host" ansible-playbook $(DEMO) tests/hosts/create.yml
	@$(STEP) "Deploy" ansible-playbook $(DEMO) deploy.yml -l b200
	@$(STEP) "Ask the router for a completion" ansible-playbook $(DEMO) demo/complete.yml

lint: setup ## Check style, types and good practice
	@$(STEP) "Check YAML" yamllint --strict .
	@$(STEP) "Check playbooks and roles" ansible-lint
	@$(STEP) "Check Python's style" ruff check .
	@$(STEP) "Check Python's format" ruff format --check .
	@$(STEP) "Check the core's types" mypy -p ansible_collections.llmops.fleet.plugins.module_utils

image: setup
	@$(STEP) "Build the test hosts' image" tests/hosts/build-image localhost/fleet-test-host:bookworm

test: wheelhouses image ## Run all tests, one by one or LANES at a time; the test hosts come and go with them
	@$(STEP) "Test" pytest --numprocesses=$(or $(LANES),0) --dist=loadgroup --durations=15 tests/unit tests/integration

check-flags: setup ## Render every profile for five releases against their flag lists
	@$(STEP) "Check the flags" env PYTHONPATH=.collections python tests/check_flags.py

check-flags-real: setup wheelhouses ## Have the real parsers of the five releases judge every profile
	@$(STEP) "Check the flags with the real parsers" env PYTHONPATH=.collections python tests/check_flags_real.py

render: setup ## Write what a deployment would put on each host of INVENTORY below OUT, and touch no host
	@$(STEP) "Render" ansible-playbook -i $(or $(INVENTORY),$(error set INVENTORY)) playbooks/render.yml \
		-e render_dir=$(abspath $(or $(OUT),$(error set OUT)))

bench-rolling: wheelhouses ## Restart two hosts with two engines each under load; ends with what was lost
	@$(STEP) "Restart a fleet under load" benchmarks/rolling/run bench

faults-rolling: wheelhouses ## Disturb a rolling restart in every way; the fleet serves after each
	@$(STEP) "Disturb a rolling restart" benchmarks/rolling/run faults

bench-staging: setup ## Copy SIZE_GB of weights into /dev/shm in every way; ends with how ours compares
	@$(STEP) "Copy weights in every way" python benchmarks/staging/bench.py --size-gb $(or $(SIZE_GB),4)

clean: ## Remove test hosts, their image, caches and the virtual environment
	@tools/clean
