"""No drafter: a request's own prediction of its answer is what is drafted; or its text so far (prompt lookup)."""
