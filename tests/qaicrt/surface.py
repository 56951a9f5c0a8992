"""The public names of ``qaicrt``: a table of python-api §B, which the tests compare with the package."""

#: enumerations; their members and codes are compared in test_enums.py
ENUMS = {
    *("BufferDataTypeEnum", "BufferIoTypeEnum", "LiveReportingLevelEnum", "QAicBufferDataTypeEnum"),
    *(
        "QAicBufferIoTypeEnum",
        "QAicDeviceType",
        "QAicErrorType",
        "QAicOpStatsFormatEnum",
        "QAicProfilingTypeEnum",
        "QAicProgramStatus",
    ),
    *("QBufferType", "QDevStatus", "QDirection", "QLogLevel", "QStatus"),
}

#: §B.15
EXCEPTIONS = {"ExceptionInit", "ExceptionNullPtr", "ExceptionRuntime"}

#: class -> members, of classes with behaviour
CLASSES = {
    # §B.4
    "Context": {"findDevice", "getId", "getLogLevel", "objName", "objNameCstr", "setLogLevel"},
    # §B.5
    "Qpc": {
        *("buffer", "getBufferMappings", "getBufferMappingsDma", "getBufferMappingsV2", "getInfo"),
        *("getIoDescriptor", "size"),
    },
    "QpcFile": {"data", "getBuffer", "load", "size"},
    # §B.6
    "Program": {
        *("activate", "createSlicingSpecHandle", "deactivate", "getBufferMappings", "getId"),
        *("getInferenceCompleteCount", "getIoDescriptor", "getProgramInfo", "initProperties", "isActivated"),
        *("isLoaded", "load", "setId", "unload"),
    },
    # §B.7
    "Queue": {"enqueue", "initProperties"},
    # §B.8
    "ExecObj": {
        *("getData", "getId", "run", "setData", "setDataWithSlices", "setId", "waitForCompletion"),
    },
    # `from_dma_buf` is of ours.
    "QBuffer": {"buf", "from_dma_buf", "handle", "offset", "size", "type"},
    "BufferDimensionsVecRef": {"append"},
    # §B.11
    "InferenceVector": {
        *("FILESET", "RANDOM", "ZERO_FILL", "getVector", "loadFromFileSet", "setBuffers"),
        *("setInputBuffers", "setOutputBuffers"),
    },
    "InferenceSet": {
        *("getAvailable", "getCompleted", "getCompletedId", "putCompleted", "submit", "waitForCompletion"),
    },
    "InferenceHandle": {
        *("execObj", "getBuffers", "getId", "setBufferDimensions", "setBuffers", "setInputBuffers"),
        *("setOutputBuffers",),
    },
    # §B.12
    "InferenceBenchmarkSet": {
        *("disable", "disableExecObjCompletionCallback", "disableOpStatsCallback", "enable"),
        *("enableExecObjCompletionCallback", "enableOpStatsCallback", "getInfCompleted", "getLastRunStats"),
        *("initDefaultProperties", "run", "runForDuration", "setLiveProfilingLevel", "setLiveReporting"),
    },
    # §B.14
    "ProfilingHandle": {"start", "stop"},
    "StreamProfilingHandle": {
        *("addProgram", "flushReports", "name", "removeProgram", "start", "stop"),
    },
    # §B.13
    "Util": {
        *("checkLibraryVersion", "getAicVersion", "getDeviceIds", "getDeviceInfo", "getPerformanceInfo"),
        *("getResourceInfo", "lockDevice"),
    },
    # §B.3, §B.12: what they add to the sequence they are is compared
    "QIDList": set(),
    "vector_char": set(),
}

#: structure -> fields
STRUCTURES = {
    # §B.5
    "BufferMapping": {"bufferName", "dataType", "index", "ioType", "isPartialBufferAllowed", "size"},
    "QpcInfo": {"constants", "program"},
    "QpcProgramInfo": {
        *("batchSize", "bufferMappings", "bufferMappingsDma", "name", "numCores", "numMcId", "numSemaphores"),
        *("programIndex", "size", "totalRequiredMemory"),
    },
    "QpcConstantsInfo": {"constantsIndex", "index", "name", "size"},
    # §B.6
    "QAicProgramProperties": {
        *("SubmitNumRetries", "SubmitRetryTimeoutMs", "dataPathTimeoutMs", "devMapping", "selectMask"),
        "submitNumRetries",
    },
    "ProgramInfo": {
        *("batchSize", "isAicStatsAvailable", "numMcid", "numNsp", "uniqueProgramID", "userDefinedProgramID"),
    },
    # §B.7
    "QAicQueueProperties": {"numThreadsPerQueue", "properties"},
    # §B.11, §B.12
    "InferenceSetProperties": {"id", "name", "programProperties", "queueProperties"},
    "BenchmarkProperties": {"programProperties", "queueProperties"},
    # §B.14
    "ProfilingProperties": {"type"},
    "ExecObjInfo": {"activationIndex", "execObjIndex", "programId", "programName", "status"},
    # §B.13
    "QDevInfo": {"devData", "devStatus", "name", "nspData", "pciInfo", "qid"},
    "QResourceInfo": {
        *("QResourceReservationID", "dramFree", "dramTotal", "mcidFree", "mcidTotal", "nspFree", "nspTotal"),
        *("pcReserved", "pcTotal", "semFree", "semTotal", "skuType", "vcFree", "vcTotal"),
    },
    "QPerformanceInfo": {
        *("compFrequencyHz", "ddrFrequencyHz", "dramBw", "memFrequencyHz", "nspFrequencyHz", "peakCompute"),
        *("sysFrequencyHz",),
    },
}

#: attribute path from a ``QDevInfo`` -> fields of the structure there (§B.13)
PARTS_OF_QDEVINFO = {
    "pciInfo": {
        "bus",
        "classname",
        "device",
        "devicename",
        "domain",
        "function",
        "pcieExtInfo",
        "vendorname",
    },
    "pciInfo.pcieExtInfo": {
        *("bar2Addr", "bar4Addr", "currLinkSpeed", "currLinkWidth", "maxLinkSpeed", "maxLinkWidth"),
    },
    "devData": {
        *("formatVersion", "fragmentationStatus", "fwFeaturesBitmap", "fwImageFeaturesString"),
        *("fwImageVariantString", "fwOEMImageVersionString", "fwQCImageVersionString", "fwVersionBuild"),
        *("fwVersionMajor", "fwVersionMinor", "fwVersionPatch", "hwVersion", "metaVerMaj", "metaVerMin"),
        *("nncCommandProtocolMajorVersion", "nncCommandProtocolMinorVersion", "nspPgMask", "numActiveNWs"),
        *("numConstsInUse", "numLoadedConsts", "numLoadedNWs", "performanceInfo", "pvsImageVersion"),
        *("resourceInfo", "sblImageString", "serial"),
    },
    "devData.resourceInfo": STRUCTURES["QResourceInfo"],
    "devData.performanceInfo": STRUCTURES["QPerformanceInfo"],
    "nspData": {"nspFwVersion"},
    "nspData.nspFwVersion": {"build", "major", "minor", "oem", "patch", "qc", "variant"},
}
