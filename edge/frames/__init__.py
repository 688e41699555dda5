"""What happens to a frame after it was sent: the ledger of all frames, validated replies, pending results.

Start with `ledger`; the record of a frame is `edge.frame_record`.
"""
