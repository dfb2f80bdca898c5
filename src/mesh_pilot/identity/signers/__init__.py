"""Signers of certificates. Each has the one method of ``identity.signers.signing.Signer``.

- ``signing``: that interface; ``requests``, ``verification``: what is asked, and whether the answer is that.
- ``remote``: the signer for CAs elsewhere, and what each kind of them writes, ``RemoteCa``.
- ``settings``: the file that says which CA signs; ``wire``: requests to one over HTTP.
- ``vault``: a kind in a folder; ``app.signers`` lists all.
"""
