"""Tool calls: what was offered, how models write calls, what forces one and what finds one."""
