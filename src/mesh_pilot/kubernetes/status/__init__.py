"""Status written back to the API server: conditions, messages of analysis, how far a change has come.

    live = LiveObjects()                                   # the source of configuration tells it what there is
    writer = StatusWriter(access, live, settings)
    writer.want(key, MESSAGES, {"validationMessages": [...]})
    election.while_leading("status", writer.run)

- `live`: the objects as the server has them, with their status.
- `merging`: a wanted status put into the one that there is.
- `writer`: writes what differs, slowly, while this replica leads.
- `messages`, `distribution`, `conditions`: what is wanted, and of which objects.

Without `--kubeconfig`, or if every part is off, nothing of this runs.
"""
