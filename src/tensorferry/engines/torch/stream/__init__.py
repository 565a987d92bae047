"""Ops that do not fit run slab by slab, from and to the tier: the fourth action, below the smallest exact budget.

An output too large for the budget becomes a `StreamedTensor`: autograd, modules and losses see an ordinary tensor, but its bytes
are on the tier, or are a function of bytes there. A rule for each op (`rules.py` and the files named after ops) computes slabs of
its output from slabs of its inputs. What a convolution makes is stored; pointwise ops and the applying half of a norm are
functions of a slab, computed again for every reader, so they take no room anywhere. What has no rule is brought back whole.

Results are those of plain torch within rounding, because weight gradients and statistics are summed in another order; they are
the same bits every time, because slab sizes follow from the budget and from shapes alone.
"""
