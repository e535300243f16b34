"""What Ansible is told of modules that look and never change anything."""


class ModuleDocFragment:
    DOCUMENTATION = r"""
options: {}
attributes:
  check_mode:
    description: Changes nothing.
    support: full
  diff_mode:
    description: Has nothing to show.
    support: none
"""
