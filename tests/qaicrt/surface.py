"""The public names of ``qaicrt``, a table that the tests compare with the package."""

#: Enumerations; test_enums.py compares their members and codes.
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

#: Exceptions.
EXCEPTIONS = {"ExceptionInit", "ExceptionNullPtr", "ExceptionRuntime"}

#: Class -> members, for classes with behavior.
CLASSES = {
    "Context": {"Factory", "findDevice", "getId", "getLogLevel", "objName", "objNameCstr", "setLogLevel"},
    "Qpc": {
        "Factory",
        *("buffer", "getBufferMappings", "getBufferMappingsDma", "getBufferMappingsV2", "getInfo"),
        *("getIoDescriptor", "size"),
    },
    "QpcFile": {"data", "getBuffer", "load", "size"},
    "Program": {
        "Factory",
        *("activate", "createSlicingSpecHandle", "deactivate", "getBufferMappings", "getId"),
        *("getInferenceCompleteCount", "getIoDescriptor", "getProgramInfo", "initProperties", "isActivated"),
        *("isLoaded", "load", "setId", "unload"),
    },
    "Queue": {"Factory", "enqueue", "initProperties"},
    "ExecObj": {
        "Factory",
        *("getData", "getId", "run", "setData", "setDataWithSlices", "setId", "waitForCompletion"),
    },
    # `from_dma_buf` exists only in this project.
    "QBuffer": {"buf", "from_dma_buf", "handle", "offset", "size", "type"},
    "BufferDimensionsVecRef": {"append"},
    "InferenceVector": {
        "Factory",
        *("FILESET", "RANDOM", "ZERO_FILL", "getVector", "loadFromFileSet", "setBuffers"),
        *("setInputBuffers", "setOutputBuffers"),
    },
    "InferenceSet": {
        "Factory",
        *(
            "getAvailable",
            "getCompleted",
            "getCompletedId",
            "getId",
            "getName",
            "putCompleted",
            "submit",
            "waitForCompletion",
        ),
    },
    "InferenceHandle": {
        *("execObj", "getBuffers", "getId", "setBufferDimensions", "setBuffers", "setInputBuffers"),
        *("setOutputBuffers",),
    },
    "InferenceBenchmarkSet": {
        "Factory",
        *("disable", "disableExecObjCompletionCallback", "disableOpStatsCallback", "enable"),
        *("enableExecObjCompletionCallback", "enableOpStatsCallback", "getInfCompleted", "getLastRunStats"),
        *("initDefaultProperties", "run", "runForDuration", "setLiveProfilingLevel", "setLiveReporting"),
    },
    "ProfilingHandle": {"Factory", "start", "stop"},
    "StreamProfilingHandle": {
        "Factory",
        *("addProgram", "flushReports", "name", "removeProgram", "start", "stop"),
    },
    "Util": {
        *("checkLibraryVersion", "getAicVersion", "getDeviceIds", "getDeviceInfo", "getPerformanceInfo"),
        *("getResourceInfo", "lockDevice"),
    },
    # additions to the sequence type that they implement
    "QIDList": set(),
    "vector_char": set(),
}

#: Structure -> fields.
STRUCTURES = {
    "BufferMapping": {"bufferName", "dataType", "index", "ioType", "isPartialBufferAllowed", "size"},
    "QpcInfo": {"constants", "program"},
    "QpcProgramInfo": {
        *("batchSize", "bufferMappings", "bufferMappingsDma", "name", "numCores", "numMcId", "numSemaphores"),
        *("programIndex", "size", "totalRequiredMemory"),
    },
    "QpcConstantsInfo": {"constantsIndex", "index", "name", "size"},
    "QAicProgramProperties": {
        *("SubmitNumRetries", "SubmitRetryTimeoutMs", "dataPathTimeoutMs", "devMapping", "selectMask"),
        "submitNumRetries",
    },
    "ProgramInfo": {
        *("batchSize", "isAicStatsAvailable", "numMcid", "numNsp", "uniqueProgramID", "userDefinedProgramID"),
    },
    "QAicQueueProperties": {"numThreadsPerQueue", "properties"},
    "InferenceSetProperties": {"id", "name", "programProperties", "queueProperties"},
    "BenchmarkProperties": {"programProperties", "queueProperties"},
    "ProfilingProperties": {"type"},
    "ExecObjInfo": {"activationIndex", "execObjIndex", "programId", "programName", "status"},
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

#: Attribute path from a ``QDevInfo`` -> fields of the structure at this path.
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
