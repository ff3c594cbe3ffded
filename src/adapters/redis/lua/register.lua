-- The functions of the library, under names with its hash, so that two releases run side by side on one server.

redis.register_function('enq_' .. HASH, F.enq)
redis.register_function({function_name = 'deq_' .. HASH, callback = F.deq, flags = {'allow-oom'}})
redis.register_function({function_name = 'set_' .. HASH, callback = F.set, flags = {'allow-oom'}})
redis.register_function({function_name = 'ses_' .. HASH, callback = F.ses, flags = {'allow-oom'}})
redis.register_function({function_name = 'msg_' .. HASH, callback = F.msg, flags = {'allow-oom'}})
redis.register_function({function_name = 'bulk_' .. HASH, callback = F.bulk, flags = {'allow-oom'}})
redis.register_function({function_name = 'swp_' .. HASH, callback = F.swp, flags = {'allow-oom'}})
redis.register_function({function_name = 'cfg_' .. HASH, callback = F.cfg, flags = {'allow-oom'}})
redis.register_function('new_' .. HASH, F.new)
redis.register_function({function_name = 'del_' .. HASH, callback = F.del, flags = {'allow-oom'}})
redis.register_function({function_name = 'see_' .. HASH, callback = F.see, flags = {'no-writes', 'allow-oom'}})
