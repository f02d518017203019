"""Text files → token files.

    read (readers) ─▶ chunks of whole lines ─▶ worker processes (pool, worker)
        ─▶ texts (documents) ─▶ packed ids (encoding) ─▶ back in input order ─▶ .bin + .idx (output)

One engine (`engine.preprocess`) behind every tool that makes token files. This file imports nothing,
so that a worker process loads only what it needs: no torch.
"""
