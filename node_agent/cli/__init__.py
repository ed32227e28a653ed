"""The command line of `node-agent`: torchrun's flags beside our own, with their PET_* variables.

    flags           what there is: a table, one entry a flag, that --help, the variables and the tests go by
    parser          the words of a command line, also shortened, to flags
    fallbacks       what the environment says where the command line is silent
    argument_types  a text to its value, or one line that says what the flag takes
    asked           the three together: every flag's value, and who gave it
    rdzv_conf, rendezvous, command, logs    what several flags mean together
    config          all of it as the agent's configuration

Named tuples here, not dataclasses: making the latter takes longer than reading a command line, and workers wait for it.
"""
