"""Is everything as a run needs it, on every host? Asked and measured before the run, in under a minute.

One probe a host (:mod:`megatron.doctor.probe`) looks at its own machine, meets the others through a socket
and compares. No process group is needed: the doctor has to speak where a run cannot. Each topic has a file
with ``look``, which finds facts on one host, and ``judge``, a pure function from the facts of all hosts to
findings.
"""
