"""Jobs on a Ray cluster: each a Ray task on a node of its kind, in the same sandbox as here"""
