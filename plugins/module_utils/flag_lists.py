"""Every command-line flag of five SGLang releases, so that a misspelt or vanished flag is found without the engine.

Read from the releases' own parsers (tests/fixtures/sglang-args holds the full lists that a test compares with this).
"""

from __future__ import annotations

from .releases import Release

LISTED = ("0.5.10.post1", "0.5.15", "0.5.17", "0.5.20", "0.5.23")
"""The releases whose parsers were read, oldest first."""

_NAMES = {
    "xxxxx": """
abort-on-priority-when-disabled admin-api-key allow-auto-truncate api-key attention-backend
attention-context-parallel-size attn-cp-size base-gpu-id bucket-e2e-request-latency bucket-inter-token-latency
bucket-time-to-first-token chat-template checkpoint-engine-wait-weights-before-ready chunked-prefill-size
completion-template config constrained-json-disable-any-whitespace constrained-json-whitespace-pattern
context-length cpu-offload-gb crash-dump-folder custom-weight-loader data-parallel-size debug-tensor-dump-input-file
debug-tensor-dump-layers debug-tensor-dump-output-folder decode-attention-backend decode-log-interval
decrypted-config-file decrypted-draft-config-file deepep-config deepep-mode default-priority-value
delete-ckpt-after-loading device disable-chunked-prefix-cache disable-cuda-graph disable-cuda-graph-padding
disable-custom-all-reduce disable-fast-image-processor disable-flashinfer-autotune
disable-flashinfer-cutlass-moe-fp4-allgather disable-hybrid-swa-memory disable-outlines-disk-cache
disable-overlap-schedule disable-priority-preemption disable-radix-cache disable-shared-experts-fusion
disable-tokenizer-batch-decode disaggregation-bootstrap-port disaggregation-decode-enable-offload-kvcache
disaggregation-decode-polling-interval disaggregation-ib-device disaggregation-mode disaggregation-transfer-backend
dist-init-addr dist-timeout dllm-algorithm dllm-algorithm-config download-dir dp-size dtype
dynamic-batch-tokenizer-batch-size dynamic-batch-tokenizer-batch-timeout elastic-ep-backend
enable-adaptive-dispatch-to-encoder enable-aiter-allreduce-fusion enable-attn-tp-input-scattered
enable-broadcast-mm-inputs-process enable-cache-report enable-cudagraph-gc enable-custom-logit-processor
enable-deterministic-inference enable-dp-attention enable-dp-lm-head enable-draft-weights-cpu-backup
enable-dynamic-batch-tokenizer enable-dynamic-chunking enable-elastic-expert-backup enable-eplb
enable-flashinfer-allreduce-fusion enable-fp32-lm-head enable-fused-moe-sum-all-reduce enable-fused-qk-norm-rope
enable-hierarchical-cache enable-hisparse enable-layerwise-nvtx-marker enable-lmcache enable-lora
enable-lora-overlap-loading enable-memory-saver enable-metrics enable-metrics-for-all-schedulers enable-mfu-metrics
enable-mixed-chunk enable-mm-global-cache enable-mscclpp enable-multi-layer-eagle enable-multimodal enable-nccl-nvls
enable-p2p-check enable-pdmux enable-precise-embedding-interpolation enable-prefill-delayer enable-prefix-mm-cache
enable-priority-scheduling enable-profile-cuda-graph enable-request-time-stats-logging enable-return-hidden-states
enable-return-routed-experts enable-single-batch-overlap enable-ssl-refresh enable-streaming-session enable-symm-mem
enable-tokenizer-batch-encode enable-torch-compile enable-torch-compile-debug-mode enable-torch-symm-mem
enable-trace enable-two-batch-overlap enable-weights-cpu-backup encoder-only encoder-transfer-backend encoder-urls
enforce-disable-flashinfer-allreduce-fusion engine-info-bootstrap-port ep ep-dispatch-algorithm
ep-num-redundant-experts ep-size eplb-algorithm eplb-min-rebalancing-utilization-threshold
eplb-rebalance-layers-per-chunk eplb-rebalance-num-iterations expert-distribution-recorder-buffer-size
expert-distribution-recorder-mode expert-parallel-size experts-shared-outer-loras export-metrics-to-file
export-metrics-to-file-dir extra-metric-labels fastapi-root-path file-storage-path flashinfer-mla-disable-ragged
flashinfer-mxfp4-moe-precision forward-hooks fp4-gemm-backend fp8-gemm-backend gc-threshold
gc-warning-threshold-secs generation-tokens-buckets gpu-id-step grammar-backend grpc-mode hf-chat-template-name
hicache-io-backend hicache-mem-layout hicache-ratio hicache-size hicache-storage-backend
hicache-storage-backend-extra-config hicache-storage-prefetch-policy hicache-write-policy hisparse-config host
incremental-streaming-output init-expert-location is-embedding json-model-override-args kt-cpuinfer
kt-max-deferred-experts-per-token kt-method kt-num-gpu-experts kt-threadpool-count kt-weight-path kv-cache-dtype
kv-events-config language-only limit-mm-data-per-request linear-attn-backend linear-attn-decode-backend
linear-attn-prefill-backend load-balance-method load-format log-level log-level-http log-requests
log-requests-format log-requests-level log-requests-target lora-backend lora-eviction-policy lora-paths
lora-target-modules mamba-backend mamba-full-memory-ratio mamba-ssm-dtype mamba-track-interval max-loaded-loras
max-lora-chunk-size max-lora-rank max-loras-per-batch max-mamba-cache-size max-prefill-tokens max-queued-requests
max-running-requests max-total-tokens mem-fraction-static mm-attention-backend mm-enable-dp-encoder
mm-process-config model model-checksum model-impl model-loader-extra-config model-path modelexpress-config
modelopt-checkpoint-restore-path modelopt-checkpoint-save-path modelopt-export-path modelopt-quant moe-a2a-backend
moe-data-parallel-size moe-dense-tp-size moe-dp-size moe-runner-backend mooncake-ib-device nccl-init-addr nccl-port
nnodes no-experts-shared-outer-loras node-rank num-continuous-decode-steps num-reserved-decode-tokens numa-node
offload-group-size offload-mode offload-num-in-group offload-prefetch-step otlp-traces-endpoint page-size
pdmux-config-path pipeline-parallel-size port pp-async-batch-depth pp-max-micro-batch-size pp-size pre-warm-nccl
preferred-sampling-params prefill-attention-backend prefill-delayer-forward-passes-buckets
prefill-delayer-max-delay-passes prefill-delayer-token-usage-low-watermark prefill-delayer-wait-seconds-buckets
prefill-max-requests priority-scheduling-preemption-threshold prompt-tokens-buckets quantization
quantization-param-path quantize-and-serve radix-eviction-policy random-seed reasoning-parser
remote-instance-weight-loader-backend remote-instance-weight-loader-seed-instance-ip
remote-instance-weight-loader-seed-instance-service-port remote-instance-weight-loader-send-weights-group-ports
remote-instance-weight-loader-start-seed-via-transfer-engine revision rl-on-policy-target rl-quant-profile
sampling-backend sampling-defaults schedule-conservativeness schedule-low-priority-values-first schedule-policy
scheduler-recv-interval served-model-name show-time-cost skip-server-warmup skip-tokenizer-init sleep-on-idle
sm-group-num soft-watchdog-timeout speculative-accept-threshold-acc speculative-accept-threshold-single
speculative-algorithm speculative-attention-mode speculative-draft-attention-backend speculative-draft-load-format
speculative-draft-model speculative-draft-model-path speculative-draft-model-quantization
speculative-draft-model-revision speculative-eagle-topk speculative-moe-a2a-backend speculative-moe-runner-backend
speculative-ngram-capacity speculative-ngram-match-type speculative-ngram-max-bfs-breadth
speculative-ngram-max-trie-depth speculative-ngram-min-bfs-breadth speculative-num-draft-tokens
speculative-num-steps speculative-token-map ssl-ca-certs ssl-certfile ssl-keyfile ssl-keyfile-password
stream-interval stream-response-default-include-usage swa-full-tokens-ratio tbo-token-distribution-threshold
tensor-parallel-size tokenizer-metrics-allowed-custom-labels tokenizer-metrics-custom-labels-header tokenizer-mode
tokenizer-path tokenizer-worker-num tool-call-parser tool-server torch-compile-max-bs tp-size
triton-attention-num-kv-splits triton-attention-reduce-in-fp32 triton-attention-split-tile-size trust-remote-code
use-ray uvicorn-access-log-exclude-prefixes warmups watchdog-timeout weight-loader-disable-mmap weight-version
""",
    ".xxxx": """
asr-max-buffer-seconds asr-max-concurrent-sessions batch-notify-size bf16-gemm-backend cp-strategy
cuda-graph-backend-decode cuda-graph-backend-prefill cuda-graph-bs-decode cuda-graph-bs-prefill cuda-graph-config
cuda-graph-max-bs-decode cuda-graph-max-bs-prefill dcp-size debug-cuda-graph decode-context-parallel-size
decoupled-spec-bind-endpoint decoupled-spec-connect-endpoints decoupled-spec-rank decoupled-spec-role
deepep-dispatcher-output-dtype detokenizer-worker-num disable-attn-tp-gather disable-decode-cuda-graph
disable-prefill-cuda-graph disaggregation-decode-enable-radix-cache disaggregation-decode-extra-slots
dsa-decode-backend dsa-paged-mqa-logits-backend dsa-prefill-backend dsa-topk-backend enable-deepseek-v4-fp4-indexer
enable-dp-attention-local-control-broadcast enable-forward-pass-metrics enable-http2 enable-int8-mamba-checkpoint
enable-linear-replayssm enable-mamba-cache-stochastic-rounding enable-mis enable-page-major-kv-layout
enable-prefill-cp enable-quant-communications enable-return-indexer-topk enable-session-radix-cache
enable-strict-thinking enable-tf32-matmul enable-unified-memory encoder-bootstrap-port encoder-register-urls
enforce-shared-experts-fusion flashinfer-allreduce-fusion-backend forward-pass-metrics-ipc-name
forward-pass-metrics-worker-id grpc-http-sidecar-port hierarchical-sparse-attention-extra-config
int8-mamba-ckpt-size kv-canary kv-canary-real-data kv-canary-sweep-interval linear-replayssm-cache-len
lmcache-config-file load-snapshot-publish-interval lora-drain-wait-threshold lora-strict-loading
lora-use-virtual-experts mamba-cache-philox-rounds mamba-radix-cache-strategy min-free-slots-delay
model-config-parser msprobe-dump-config no-lora-strict-loading prefill-delayer-max-delay-ms
prefill-delayer-queue-min-ratio prefill-only-disable-kv-cache radix-cache-backend spec-trace-dir
speculative-adaptive speculative-adaptive-config speculative-dflash-block-size speculative-draft-window-size
speculative-ngram-external-corpus-max-tokens speculative-ngram-external-corpus-path
speculative-ngram-external-sam-budget speculative-use-rejection-sampling strip-thinking-cache tokenizer-backend
trace-modules weight-loader-drop-cache-after-load weight-loader-prefetch-checkpoints
weight-loader-prefetch-num-threads
""",
    "xxxx.": """
keep-mm-feature-on-device
""",
    "xxx..": """
collect-tokens-histogram cuda-graph-bs cuda-graph-max-bs disable-piecewise-cuda-graph
enable-expert-distribution-metrics enable-nsa-prefill-context-parallel enable-prefill-context-parallel
enforce-piecewise-cuda-graph mamba-scheduler-strategy nsa-decode-backend nsa-prefill-backend nsa-prefill-cp-mode
piecewise-cuda-graph-compiler piecewise-cuda-graph-max-tokens piecewise-cuda-graph-tokens prefill-cp-mode
prefill-round-robin-balance stream-output torchao-config
""",
    ".xxx.": """
cuda-graph-tc-compiler elastic-ep-rejoin speculative-skip-dp-mlp-sync
""",
    "..xxx": """
dcp-comm-backend dcp-replicate-q-proj default-chat-template-kwargs dllm-fdfo dwdp-size elastic-ep-initial-size
elastic-ep-join-mode elastic-ep-join-rank-offset elastic-ep-scale-timeout enable-cp-decode-attn-tp
enable-dsa-cache-layer-split enable-flexkv enable-linear-replayssm-spec enable-scattered-sconv enable-waterfill
flashinfer-autotune-skip-ops flexkv-config-file fuseep-mode grpc-port linear-attn-verify-backend
mamba-max-states-per-path max-ep-size mm-feature-transport mm-io-worker-num mm-processor-worker-num
no-dcp-replicate-q-proj no-dllm-fdfo optimistic-prefill-attempts retraction-policy return-hidden-states-mode sidecar
sidecar-args smg-grpc-mode smg-http-sidecar-port speculative-dspark-align-verify-tokens-to-graph-tier
speculative-dspark-block-size speculative-dspark-confidence-sts-path speculative-dspark-sps-table-path
weight-cache-mode weight-cache-socket weight-cache-timeout
""",
    "...xx": """
allowed-media-domains c128-page-size deepep-v2-mode disaggregation-decode-retraction-backup dsv4-attn-backend
dsv4-prefill-backend enable-dense-mlp-attn-tp enable-layernorm-sp enable-lean-attention enable-response-store
enable-shared-experts-attn-tp enable-tp-lm-head-all-to-all enable-unified-cache-external-linker
enable-w4a4-mxfp4-megamoe expert-balancedness-report-mode flashinfer-a2a-dispatch-type gated-launch-port
hicache-host-memory-mode hicache-storage-prefetch-retry-max-attempts hicache-storage-prefetch-retry-poll-interval
http2-initial-connection-window-size http2-max-concurrent-streams image-processor-backend language-model-only
load-publish-endpoint media-url-max-file-size-mb mlx-enable-sampling mm-global-cache-backend
mm-preprocess-cache-size-mb no-enable-tp-lm-head-all-to-all no-ple-offload-embedding ple-offload-backend
ple-offload-dir ple-offload-embedding prefill-decode-interval radix-eviction-policy-config return-input-ids
return-output-ids sampling-mask-max-tokens speculative-domino-candidate-pool-size speculative-draft-kv-cache-dtype
speculative-dsa-topk-backend startup-weight-load-mode trust-mm-content-hashes unified-cache-external-linker-backend
uno-lora-path
""",
    ".xx..": """
dsa-prefill-cp-mode enable-breakable-cuda-graph enable-dsa-prefill-context-parallel
speculative-dflash-draft-window-size
""",
    "....x": """
attention-data-parallel-size attn-dp-size boundary-reduction constrained-json-max-whitespace-cnt context-bucket
cuda-graph-max-seq-len-prefill cuda-graph-prefill-max-context disable-aiter-allreduce-fusion-in-decode
disable-aiter-allreduce-fusion-in-prefill disaggregation-decode-allocation-policy
disaggregation-decode-host-receive-threshold disaggregation-enable-kv-checksum dsa-triton-union
enable-amd-monokernel enable-decoder-swa-bounded-replay enable-dsa-fused-indexer enable-encoder-swa-bounded-replay
enable-hicache enable-http-worker-reuseport enable-kv-cache-sharding enable-linker-mla-dedup
enable-megamoe-for-layernorm-sp enable-nvidia-megakernel enable-paged-experts enable-pd-role-switch
enable-return-aux-hidden-states enable-watermark grpc-response-timeout-secs hicache-host-memory-fraction
monokernel-backend no-enable-decoder-swa-bounded-replay no-enable-dsa-fused-indexer no-enable-fused-qk-norm-rope
no-enable-tf32-matmul no-mm-enable-dp-encoder no-speculative-enable-w4a4-mxfp4-megamoe otlp-service-name
paged-experts-num-resident prefill-decode-interval-min-bs prefill-kv-cache-dequant-dtype qsa-indexer-dtype
return-aux-hidden-state-layer-ids shared-experts-tp-size speculative-draft-sink-size
speculative-enable-w4a4-mxfp4-megamoe speculative-use-block-verification swa-prefix-tails
trust-request-chat-template unified-cache-external-linker-config watermark-config
""",
    "x....": """
custom-sigquit-handler debug-tensor-dump-inject ds-channel-config-path ds-heavy-channel-num ds-heavy-channel-type
ds-heavy-token-num ds-sparse-decode-threshold enable-double-sparsity enable-nan-detection
enable-piecewise-cuda-graph hybrid-kvcache-ratio multi-item-scoring-delimiter
""",
    ".x...": """
enable-deepep-waterfill optimistic-prefill-retries
""",
    "..x..": """
enable-gdn-replayssm-spec
""",
}
"""Names without their dashes, by presence: one letter per listed release, `x` where it takes the flag."""


def flags_of(release: Release) -> frozenset[str]:
    """Flags that a release may take: its list's, or for a release between two lists those of either."""
    neighbours = {_latest_until(release), _earliest_from(release)}
    return frozenset(
        f"--{name}"
        for presence, names in _NAMES.items()
        if any(presence[index] == "x" for index in neighbours)
        for name in names.split()
    )


def fate(flag: str, release: Release) -> str:
    """What became of a flag that the release does not take, in words: gone, not there yet, or in no release at all."""
    presence = next((each for each, names in _NAMES.items() if flag.removeprefix("--") in names.split()), "")
    if not presence:
        return f"no SGLang release from {LISTED[0]} to {LISTED[-1]} has it"
    first, last = presence.index("x"), presence.rindex("x")
    if Release.parse(LISTED[first]) > release:
        return f"it is there from {LISTED[first]} on"
    return f"it is gone by {LISTED[last + 1]}"


def _latest_until(release: Release) -> int:
    older = [index for index, each in enumerate(LISTED) if Release.parse(each) <= release]
    return older[-1] if older else 0


def _earliest_from(release: Release) -> int:
    newer = [index for index, each in enumerate(LISTED) if Release.parse(each) >= release]
    return newer[0] if newer else len(LISTED) - 1
