"""Options that all modules which replace engines share."""


class ModuleDocFragment:
    DOCUMENTATION = r"""
options:
  rolling:
    description: How carefully running engines are replaced.
    type: dict
    default: {}
    suboptions:
      batch:
        description: Engines of this host that are out of service at the same time.
        type: int
        default: 1
      min_healthy:
        description: Workers that every router must have left for the model while they are out.
        type: int
        default: 1
      allow_downtime:
        description: Go on even where fewer are left.
        type: bool
        default: false
      hosts:
        description:
          - Hosts that may each have a batch out of service at the same time, this one included. O(rolling.min_healthy)
            must be left even then.
        type: int
        default: 1
      capacity_timeout_s:
        description: Longest wait in seconds for O(rolling.min_healthy) to be left, since other hosts may roll.
        type: float
        default: 60
      drain_timeout_s:
        description: Longest wait in seconds for requests in flight. Without it, each instance's own.
        type: float
      release_timeout_s:
        description: Longest wait in seconds after a stop for memory and ports to be free.
        type: float
        default: 300
      start_timeout_s:
        description: Longest wait in seconds from start to ready. Without it, each instance's own twice.
        type: float
      gpu_idle_mib:
        description: GPU memory in use, in MiB, up to which a GPU counts as free.
        type: int
        default: 2048
      canary:
        description: Compare speed, accepted tokens and errors of each engine with those before.
        type: bool
        default: false
      tolerance:
        description: Share by which a canary may be slower than before.
        type: float
        default: 0.2
"""
