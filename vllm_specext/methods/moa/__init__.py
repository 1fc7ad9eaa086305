"""MoA: a drafter that attends to what the target's own key/value cache says about the verified text."""
